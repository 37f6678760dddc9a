"""A number of a release, read as one of a few symbols: four of its binary digits, its residue, or which value it is.

Noise that is spread wide enough hides how large a number is. It may still leave alone how a number ends: its parity,
what is left of it modulo the grid on which the noise was drawn, or values that it never takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.auditing.granularity import lowest_digit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Symbols = NDArray[np.int64]

_DIGITS = 4  # read at once
_STRIDE = 2  # from one window of digits to the next, so that a pattern of three digits lies within one
_MOST_WINDOWS = 40
_MOST_VALUES = 256
_SMALL_MODULI = (3, 5, 7)
_MOST_MODULI = 8
_BINS = 16


@dataclass(frozen=True)
class Reading:
    """`of` gives each number a symbol below `symbols`, or `symbols` itself where it shows none."""

    name: str
    symbols: int
    of: Callable[[NDArray[Any]], Symbols]


def support_readings(numbers: NDArray[Any]) -> list[Reading]:
    """Which value a number has, where few occur: some may be possible in one world only."""
    import numpy as np

    known = np.unique(numbers[np.isfinite(numbers.astype(np.float64))])
    if not 1 < len(known) <= _MOST_VALUES:
        return []

    def which(numbers: NDArray[Any]) -> Symbols:
        place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return np.where(known[place] == numbers, place, len(known)).astype(np.int64)

    return [Reading("which value occurs:", len(known), which)]


def low_bit_readings(numbers: NDArray[Any], centres: Iterable[float] = ()) -> list[Reading]:
    """Windows of binary digits from the lowest upwards; residues modulo what the sums without noise are made of."""
    windows = [_window(low) for low in _windows(numbers)]
    residues = [_residue(modulus) for modulus in _moduli(centres)]
    if numbers.dtype.kind != "f":
        return [*windows, *residues]
    return [*windows, *_mantissa_windows(numbers), *residues]


def _windows(numbers: NDArray[Any]) -> range:
    """Where windows begin, as powers of two."""
    import numpy as np

    values = numbers.astype(np.float64)
    largest = float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
    top = int(np.frexp(largest)[1])
    lowest = lowest_digit(numbers)
    low = int(np.min(lowest, where=~np.isnan(lowest), initial=top)) if numbers.dtype.kind == "f" else 0
    return range(low, max(low + 1, top), _STRIDE)[:_MOST_WINDOWS]


def _window(low: int) -> Reading:
    import numpy as np

    def digits(numbers: NDArray[Any]) -> Symbols:
        if numbers.dtype.kind != "f":
            whole: Symbols = (numbers.astype(np.int64) >> low) & (2**_DIGITS - 1)
            return whole
        shown = np.mod(np.floor(np.ldexp(numbers.astype(np.float64), -low)), 2.0**_DIGITS)
        return np.where(np.isfinite(shown), shown, 2**_DIGITS).astype(np.int64)

    return Reading(f"binary digits {low} to {low + _DIGITS - 1} of", 2**_DIGITS, digits)


def _mantissa_windows(numbers: NDArray[Any]) -> list[Reading]:
    """Of floats also by place in the mantissa, wherever the point is."""
    import numpy as np

    width = {2: 10, 4: 23}.get(numbers.dtype.itemsize, 52)

    def window(low: int) -> Reading:
        def digits(numbers: NDArray[Any]) -> Symbols:
            floats = numbers if numbers.dtype.itemsize in {2, 4, 8} else numbers.astype(np.float64)
            words = np.ascontiguousarray(floats).view(f"u{floats.dtype.itemsize}").astype(np.int64)
            shown: Symbols = np.where(np.isfinite(floats), (words >> low) & (2**_DIGITS - 1), 2**_DIGITS)
            return shown

        return Reading(f"mantissa bits {low} to {low + _DIGITS - 1} of", 2**_DIGITS, digits)

    return [window(low) for low in range(0, width, _DIGITS)]


def _moduli(centres: Iterable[float]) -> list[int]:
    """Small ones, and those of the sums without noise; a power of two has a window of its own."""
    found = sorted({abs(round(value)) for value in centres if abs(value) < 2.0**62})
    of_sums = [number for number in found if number > max(_SMALL_MODULI) and number & (number - 1)]
    return [*_SMALL_MODULI, *of_sums[:_MOST_MODULI]]


def _residue(modulus: int) -> Reading:
    import numpy as np

    symbols = modulus if modulus <= 2 * _BINS else _BINS

    def residue(numbers: NDArray[Any]) -> Symbols:
        if numbers.dtype.kind != "f":
            return np.mod(numbers.astype(np.int64), modulus) * symbols // modulus
        left = np.floor(np.mod(numbers.astype(np.float64), modulus) * (symbols / modulus))
        return np.where(np.isfinite(left), np.minimum(left, symbols - 1), symbols).astype(np.int64)

    return Reading(f"residue modulo {modulus} of", symbols, residue)
