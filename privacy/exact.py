"""Terms as exact rationals, rounded so that the noise is never smaller than what is booked."""

from __future__ import annotations

import math
from fractions import Fraction

from privacy.budget import MICRO
from privacy.errors import InvalidTerms

Number = Fraction | float | int | str


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


def positive(value: Number, name: str) -> Fraction:
    """An exact rational above 0."""
    exact = as_written(value, name)
    if exact <= 0:
        raise InvalidTerms(f"{name} must be above 0, got {value}; nothing was booked")
    return exact
