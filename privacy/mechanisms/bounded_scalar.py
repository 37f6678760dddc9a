"""A loss or a latency that leaves the device: one number, clipped to a declared range and noised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.exact import Number, check_range, exact_epsilon, whole
from privacy.packing import pack, unpack
from privacy.readable import halving_for, real_number
from privacy.release import Answer, Guarantee

if TYPE_CHECKING:
    from privacy.randomness import NoiseSource

_MOST_STEPS = 2**52  # a float still tells one from the next


@dataclass(frozen=True)
class BoundedScalar:
    """A number in [low, high], ε-DP for the whole device.

    The number is rounded to one of `steps`+1 whole positions. Anything about the device may change it
    from one end to the other, so the sensitivity is `steps` and the scale steps/ε, whatever the
    relation. The receiver may clip or average; the noised position itself is not clipped.
    """

    low: float
    high: float
    epsilon: Number
    steps: int = 1024
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "bounded_scalar"

    def __post_init__(self) -> None:
        check_range(self.low, self.high, "a scalar needs")
        object.__setattr__(self, "steps", whole(self.steps, "steps", 1, _MOST_STEPS))
        object.__setattr__(self, "epsilon", exact_epsilon(self.epsilon))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))

    @property
    def terms(self) -> dict[str, int | str]:
        return {
            "low": str(self.low),
            "high": str(self.high),
            "steps": self.steps,
            "epsilon": str(self.epsilon),
            "relation": self.relation.value,
        }

    @property
    def cost(self) -> PrivacyCost:
        return PrivacyCost.pure(exact_epsilon(self.epsilon), PrivacyUnit.DEVICE, self.relation)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity=f"L1 {self.steps} steps: the whole range",
            noise=f"discrete Laplace of scale {self.steps}/ε",
            proof="Ghosh, Roughgarden, Sundararajan 2012",
        )

    def check(self, data: float) -> None:
        """A real number; its value is private and not looked at."""
        if not hasattr(data, "__float__"):
            raise InvalidTerms("a scalar must be a real number; nothing was booked")

    def answer(self, data: float, noise: NoiseSource) -> Answer:
        drawn = noise.discrete_laplace(self.steps / exact_epsilon(self.epsilon))
        return Answer(pack([self._position(data) + drawn]), noise.seeded)

    def decode(self, payload: bytes) -> float:
        """The noised number; it may lie outside the range."""
        return self.low + self.decode_steps(payload)[0] * (self.high - self.low) / self.steps

    def decode_steps(self, payload: bytes) -> list[int]:
        """The noised position, as the one whole number that was sent."""
        return unpack(payload, 1)

    def _position(self, data: float) -> int:
        value, halving = real_number(data), halving_for(self.low, self.high)
        low, high = float(self.low) * halving, float(self.high) * halving
        # What is not a number counts as the low end: a defined answer that needs no error.
        clipped = low if math.isnan(value) else min(max(value * halving, low), high)
        return round((clipped - low) / (high - low) * self.steps)
