"""How fine the grid is on which a release lies: noise on a grid that follows from the data tells of them.

The lowest digit of a single number finds noise that was added in floats (Mironov 2012). The largest whole number
that divides all of them, or their lowest digit together, finds a step that was chosen by the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privacy.auditing.observations import Observations, Statistic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def trailing_bits(column: int) -> Statistic:
    """The lowest binary digit of one number: adding noise in floats leaves traces there."""
    return Statistic(f"trailing bits of value {column}", lambda seen: lowest_digit(seen.values[:, column]))


def granularities() -> list[Statistic]:
    """Of all numbers of a release together."""
    return [
        Statistic("trailing bits of all values", _common_trailing_bits),
        Statistic("greatest common divisor of all values", _common_divisor),
    ]


def lowest_digit(values: NDArray[Any]) -> Floats:
    """log2 of the lowest binary digit that is 1; NaN for 0 and for what is not finite."""
    import numpy as np

    exponent: NDArray[Any] = np.zeros(values.shape, dtype=np.int64)
    if values.dtype.kind == "f":
        mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0).astype(np.float64))
        values, exponent = mantissa * 2.0**53, exponent - 53
    whole = values.astype(np.int64)
    lowest = np.abs((whole & -whole).astype(np.float64))
    return np.where(lowest > 0, np.log2(np.maximum(lowest, 1.0)) + exponent, np.nan)


def _common_trailing_bits(seen: Observations) -> Floats:
    """The lowest digit that any of a run's numbers has."""
    import numpy as np

    lowest = lowest_digit(seen.values)
    least: Floats = np.where(np.isnan(lowest), np.inf, lowest).min(axis=1)
    return least


def _common_divisor(seen: Observations) -> Floats:
    """NaN where a number is not whole."""
    import numpy as np

    values = seen.values
    if values.dtype.kind != "f":
        divisor: Floats = np.gcd.reduce(values.astype(np.int64), axis=1).astype(np.float64)
        return divisor
    are_whole = (np.abs(values) < 2.0**53) & (np.floor(values) == values)
    divisor = np.gcd.reduce(np.where(are_whole, values, 0.0).astype(np.int64), axis=1).astype(np.float64)
    return np.where(are_whole.all(axis=1), divisor, np.nan)
