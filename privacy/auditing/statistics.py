"""Numbers that a guess can rest on: what is large, what is 0, what is missing, and how two numbers differ.

Some are fixed (length, error); others are fitted to scouting runs, which then take no part in the verdict. What a
number ends with is looked at in `granularity`, `float_support` and `learning`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from privacy.auditing.float_support import float_supports
from privacy.auditing.granularity import granularities, trailing_bits
from privacy.auditing.observations import Observations, Statistic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_MOST_COLUMNS = 8


def error() -> Statistic:
    """1 where the mechanism raised, else 0: an error that depends on data is a release."""
    return Statistic("error or none", lambda seen: seen.failed.astype(float))


def message_length() -> Statistic:
    """Bytes of the message; nothing where there is none."""
    return Statistic("message length", lambda seen: _where(~seen.failed, seen.length_bytes))


def not_finite() -> Statistic:
    """How many numbers are missing, infinite or not numbers."""
    return Statistic("numbers that are not finite", lambda seen: _sum(~_finite(seen.values)))


def support() -> Statistic:
    """How many numbers are not 0: noise that spares the zeros shows which they are."""
    return Statistic("how many values are not 0", lambda seen: _sum(seen.values != 0))


def total() -> Statistic:
    """The sum of all numbers: a record that may be in any of them is in this one."""
    return Statistic("sum of all values", lambda seen: seen.values.astype(float).sum(axis=1))


def largest() -> Statistic:
    """The largest number: whatever sticks out, wherever it is."""
    return Statistic("largest value", lambda seen: seen.values.astype(float).max(axis=1))


def smallest() -> Statistic:
    """The smallest number."""
    return Statistic("smallest value", lambda seen: seen.values.astype(float).min(axis=1))


def magnitude() -> Statistic:
    """The number furthest from 0: what went wrong may come out at either end of the range."""
    return Statistic("largest magnitude", lambda seen: abs(seen.values.astype(float)).max(axis=1))


def value(column: int) -> Statistic:
    """One number of the release, such as a bin."""
    return Statistic(f"value {column}", lambda seen: _column(seen, column))


def is_not_zero(column: int) -> Statistic:
    """Whether one number differs from 0."""
    return Statistic(f"value {column} is not 0", lambda seen: (_column(seen, column) != 0).astype(float))


def difference(column: int, other: int) -> Statistic:
    """One number less another: noise that two bins share cancels."""
    return Statistic(f"value {column} - value {other}", lambda seen: _column(seen, column) - _column(seen, other))


def nearness(first: Floats, second: Floats) -> Statistic:
    """How much nearer, in L1, the release is to the second world's centre: the best statistic for Laplace noise."""

    def of(seen: Observations) -> Floats:
        import numpy as np

        values = seen.values.astype(np.float64)
        near: Floats = np.sum(np.abs(values - first) - np.abs(values - second), axis=1)
        return near

    return Statistic("nearness to either world", of)


def projection(first: Floats, second: Floats) -> Statistic:
    """The release along the line from one world's centre to the other's: the best statistic for Gaussian noise."""
    import numpy as np

    # Halved and scaled by the largest first: the difference and the squares of huge values would overflow.
    shift = second / 2 - first / 2
    shift /= np.abs(shift).max() or 1.0
    direction: Floats = shift / (np.linalg.norm(shift) or 1.0)
    return Statistic("projection", lambda seen: np.dot(seen.values.astype(np.float64), direction))


def fitted_to(
    scouted: Observations, centres: tuple[Any, Any] | None = None, *, gaussian: bool = False
) -> list[Statistic]:
    """Every statistic worth trying, the most likely first; what is not known is taken from the scouting runs."""
    import numpy as np

    always = [error(), message_length(), not_finite()]
    width = scouted.values.shape[1]
    if not width or scouted.second.all() or not scouted.second.any():
        return always
    places = [(centre(scouted, second=False), centre(scouted, second=True))]
    if centres is not None and len(centres[0]) == width:
        places.insert(0, (np.array(centres[0], dtype=np.float64), np.array(centres[1], dtype=np.float64)))
    columns = telling_columns(scouted)
    best = (projection, nearness) if gaussian else (nearness, projection)
    between = [make(*pair) for pair in places for make in best]
    each = [make(column) for column in columns for make in (value, is_not_zero, trailing_bits)]
    pairs = [difference(columns[0], column) for column in columns[1:]]
    whole = [support(), total(), largest(), smallest(), magnitude(), *granularities()]
    return [*always, *between, *whole, *each, *pairs, *float_supports(centres, width)]


def centre(seen: Observations, *, second: bool) -> Floats:
    """The median of each column in one world, 0 where it has none; unlike a mean, one huge value cannot move it."""
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column of NaN has no median
        medians = np.nanmedian(seen.values[seen.second == second].astype(np.float64), axis=0)
    finite: Floats = np.nan_to_num(medians, nan=0.0, posinf=0.0, neginf=0.0)
    return finite


def telling_columns(seen: Observations) -> list[int]:
    """The columns that differ most between the worlds: in rank, or in how often they are 0."""
    import numpy as np

    values = seen.values.astype(np.float64)
    ranks = np.argsort(np.argsort(values, axis=0), axis=0) / len(values)
    shift = np.abs(ranks[seen.second].mean(axis=0) - ranks[~seen.second].mean(axis=0))
    is_zero = values == 0
    sparsity = np.abs(is_zero[seen.second].mean(axis=0) - is_zero[~seen.second].mean(axis=0))
    chosen: list[int] = np.argsort(-np.maximum(shift, sparsity), kind="stable")[:_MOST_COLUMNS].tolist()
    return chosen


def _column(seen: Observations, column: int) -> Floats:
    import numpy as np

    column_of_floats: Floats = seen.values[:, column].astype(np.float64)
    return column_of_floats


def _finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    import numpy as np

    finite: NDArray[np.bool_] = np.isfinite(values.astype(np.float64))
    return finite


def _sum(flags: NDArray[np.bool_]) -> Floats:
    import numpy as np

    counted: Floats = flags.sum(axis=1).astype(np.float64)
    return counted


def _where(shown: NDArray[np.bool_], values: Floats) -> Floats:
    import numpy as np

    return np.where(shown, values, np.nan)
