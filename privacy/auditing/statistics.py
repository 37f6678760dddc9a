"""What an onlooker sees of a release, as numbers that a guess can rest on.

A statistic turns observations into one number a run; NaN means that this run shows nothing by it. Some
are fixed (length, error); others are fitted to scouting runs, which then take no part in the verdict.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_MOST_COLUMNS = 8


@dataclass(frozen=True)
class Seen:
    """One run from outside: the numbers of the release and its length; an error shows neither."""

    values: NDArray[Any] | None
    length_bytes: int
    failed: bool = False


@dataclass(frozen=True)
class Observations:
    """Many runs: the coin that chose the world, and what was seen of each."""

    second: NDArray[np.bool_]
    values: NDArray[Any]
    """Runs by columns; NaN where a run showed fewer numbers than others."""
    length_bytes: Floats
    failed: NDArray[np.bool_]

    @classmethod
    def of(cls, coins: Sequence[int], seen: Sequence[Seen], columns: int | None = None) -> Observations:
        """As a table of `columns` numbers a run, or of as many as the longest release has."""
        import numpy as np

        return cls(
            np.array(coins, dtype=bool),
            _table([run.values for run in seen], columns),
            np.array([run.length_bytes for run in seen], dtype=np.float64),
            np.array([run.failed for run in seen], dtype=bool),
        )


@dataclass(frozen=True)
class Statistic:
    """A named number for each run."""

    name: str
    of: Callable[[Observations], Floats]

    def of_each(self, seen: Observations) -> Floats:
        """The number of every run; what overflows or has no meaning is infinite or NaN."""
        import numpy as np

        with np.errstate(all="ignore"):
            return self.of(seen)


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


def trailing_bits(column: int) -> Statistic:
    """The lowest binary digit of one number: adding noise in floats leaves traces there (Mironov 2012)."""
    return Statistic(f"trailing bits of value {column}", lambda seen: _lowest_digit(seen.values[:, column]))


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
    return [*always, *between, support(), total(), largest(), smallest(), magnitude(), *each, *pairs]


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


def numbers_of(payload: bytes, decode: Callable[[bytes], Any] | None) -> NDArray[Any]:
    """The release as a row of numbers: decoded if possible, else its bytes as integers of 8 bytes."""
    import numpy as np

    if decode is not None:
        try:
            decoded = decode(payload)
            parts = list(decoded.values()) if isinstance(decoded, Mapping) else [decoded]
            row = np.concatenate([np.ravel(np.asarray(part)) for part in parts])
        except Exception:  # whoever cannot decode a message still sees its bytes
            row = np.empty(0, dtype=object)
        if row.dtype.kind in "iufb":
            return row
    return np.frombuffer(payload + bytes(-len(payload) % 8), dtype="<i8")


def _table(rows: Sequence[NDArray[Any] | None], columns: int | None) -> NDArray[Any]:
    import numpy as np

    width = max((len(row) for row in rows if row is not None), default=0) if columns is None else columns
    if all(row is not None and len(row) == width for row in rows):
        return np.array(rows).reshape(len(rows), width)
    table = np.full((len(rows), width), np.nan)
    for target, row in zip(table, rows, strict=True):
        if row is not None:
            target[: len(row)] = row[:width]
    return table


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


def _lowest_digit(values: NDArray[Any]) -> Floats:
    """log2 of the lowest binary digit that is 1; NaN for 0 and for what is not finite."""
    import numpy as np

    exponent: NDArray[Any] = np.zeros(len(values), dtype=np.int64)
    if values.dtype.kind == "f":
        mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0).astype(np.float64))
        values, exponent = mantissa * 2.0**53, exponent - 53
    whole = values.astype(np.int64)
    lowest = np.abs((whole & -whole).astype(np.float64))
    return np.where(lowest > 0, np.log2(np.maximum(lowest, 1.0)) + exponent, np.nan)
