"""The noise of a step: whole grid steps, exactly distributed, on sums of whole numbers.

`privacy.grid_gaussian` draws it. The standard deviation in grid steps is noise_multiplier·2**STEP_BITS, so that
multipliers up to 512 can be drawn. A step that is taken from the noised sum is post-processing, whatever it does.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from privacy.errors import InvalidTerms
from privacy.grid_gaussian import LARGEST_DEVIATION, SMALLEST_DEVIATION, rounded_gaussian
from privacy.training.step_rule import STEP_BITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource


def deviation_in_steps(noise_multiplier: Fraction) -> Fraction:
    """The standard deviation in grid steps; refused where it cannot be drawn exactly."""
    deviation = noise_multiplier * (1 << STEP_BITS)
    if not SMALLEST_DEVIATION <= deviation <= LARGEST_DEVIATION:
        least, most = (Fraction(end, 2**STEP_BITS) for end in (SMALLEST_DEVIATION, LARGEST_DEVIATION))
        raise InvalidTerms(
            f"DP-SGD draws noise exactly for multipliers from {float(least):.2g} to {float(most):g}, "
            f"got {float(noise_multiplier):g}; nothing was booked"
        )
    return deviation


class StepNoise:
    """Adds fresh noise to whole sums; every step draws from a key of its own."""

    def __init__(self, noise: NoiseSource, noise_multiplier: Fraction) -> None:
        self._noise = noise
        self._deviation = deviation_in_steps(noise_multiplier)

    def add_to(self, sums: NDArray[np.float64]) -> None:
        """`sums`, whole numbers, += noise, in place; both lie far below 2**53, so float64 holds them exactly."""
        sums += rounded_gaussian(self._noise, self._deviation, len(sums))
