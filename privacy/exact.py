"""Terms as exact rationals, rounded so that the noise is never smaller than what is booked."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

from privacy.budget import MICRO
from privacy.errors import InvalidTerms

Number = Fraction | float | int | str

LARGEST_COUNTS = 2**24
"""Of a table or of choices: more would not fit into a device's memory, once the cost is booked."""


def as_written(value: Number, name: str) -> Fraction:
    """The rational a person meant: 0.1 is 1/10, not the nearest binary fraction."""
    if isinstance(value, Fraction):
        return value
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidTerms(f"{name} must be a finite number, got {value!r}; nothing was booked") from error


def exact_epsilon(value: Number, name: str = "epsilon") -> Fraction:
    """ε on the ledger's grid of micro-ε, rounded down: noise and booking then agree to the last digit."""
    epsilon = Fraction(math.floor(as_written(value, name) * MICRO), MICRO)
    if epsilon <= 0:
        raise InvalidTerms(f"{name} must be at least {1 / MICRO:g}, got {value}; nothing was booked")
    return epsilon


def exact_multiplier(value: Number, name: str = "noise_multiplier") -> Fraction:
    """A noise multiplier on a grid of a millionth, rounded up: never less noise than asked for."""
    multiplier = Fraction(math.ceil(as_written(value, name) * MICRO), MICRO)
    if multiplier <= 0:
        raise InvalidTerms(f"{name} must be above 0, got {value}; nothing was booked")
    return multiplier


def whole(value: int, name: str, least: int, most: int) -> int:
    """An integer within these bounds: what is refused here cannot fail later, when it is booked."""
    try:
        exact = operator.index(value)
    except TypeError:
        exact = least - 1
    if not least <= exact <= most:
        raise InvalidTerms(
            f"{name} must be a whole number from {least} to {most}, got {_shortened(value)}; nothing was booked"
        )
    return exact


def check_range(low: float, high: float, what: str) -> None:
    """Refuse a range whose ends are not finite floats, low below high."""
    try:
        ends = float(low), float(high)
    except (OverflowError, TypeError, ValueError):
        ends = math.nan, math.nan
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise InvalidTerms(
            f"{what} a finite range, low below high, got {_shortened(low)} to {_shortened(high)}; nothing was booked"
        )


def positive(value: Number, name: str) -> Fraction:
    """An exact rational above 0."""
    exact = as_written(value, name)
    if exact <= 0:
        raise InvalidTerms(f"{name} must be above 0, got {value}; nothing was booked")
    return exact


def _shortened(value: object) -> str:
    """For a message: not more digits than anyone reads, nor more than Python turns into text."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:40]
