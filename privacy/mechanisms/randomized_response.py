"""k-ary randomised response: one choice of k, told truthfully with the probability that ε allows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.exact import LARGEST_COUNTS, Number, exact_epsilon, whole
from privacy.packing import pack, unpack
from privacy.randomness import exp_floor
from privacy.readable import whole_number
from privacy.release import Answer, Guarantee

if TYPE_CHECKING:
    from privacy.randomness import NoiseSource

_WEIGHT_BITS = 64
# A weight has ε/ln 2 bits, and must fit into a device; from here on the truth is told a little less than ε allows.
_LARGEST_EPSILON = Fraction(1000)


@dataclass(frozen=True)
class RandomizedResponse:
    """A choice in [0, num_choices), ε-DP for the whole device: whatever it holds, any choice may be told.

    The true choice has weight floor(e^ε·2^64), every other one 2^64, so the ratio of two probabilities
    is at most e^ε in exact arithmetic.
    """

    num_choices: int
    epsilon: Number
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "randomized_response"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_choices", whole(self.num_choices, "num_choices", 2, LARGEST_COUNTS))
        object.__setattr__(self, "epsilon", exact_epsilon(self.epsilon))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))

    @property
    def terms(self) -> dict[str, int | str]:
        return {"num_choices": self.num_choices, "epsilon": str(self.epsilon), "relation": self.relation.value}

    @property
    def cost(self) -> PrivacyCost:
        return PrivacyCost.pure(exact_epsilon(self.epsilon), PrivacyUnit.DEVICE, self.relation)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity="the choice may change to any other",
            noise="the true choice with probability e^ε/(e^ε+k-1), rounded down, else one of the others",
            proof="Warner 1965; Kairouz, Oh, Viswanath 2014",
        )

    @property
    def weight_of_truth(self) -> int:
        """In units in which each other choice weighs 2**64."""
        return exp_floor(min(exact_epsilon(self.epsilon), _LARGEST_EPSILON), _WEIGHT_BITS)

    @property
    def probability_of_truth(self) -> float:
        return self.weight_of_truth / (self.weight_of_truth + ((self.num_choices - 1) << _WEIGHT_BITS))

    def check(self, data: int) -> None:
        """The choice is an integer; its value is private and not looked at."""
        if not hasattr(data, "__index__"):
            raise InvalidTerms("a choice must be an integer; nothing was booked")

    def answer(self, data: int, noise: NoiseSource) -> Answer:
        truth = self.weight_of_truth
        ticket = noise.below(truth + ((self.num_choices - 1) << _WEIGHT_BITS))
        step = 0 if ticket < truth else 1 + ((ticket - truth) >> _WEIGHT_BITS)
        # A choice out of range, or none at all, would be a mistake of the caller; an error here would depend on it.
        choice = (whole_number(data) or 0) % self.num_choices
        return Answer(pack([(choice + step) % self.num_choices]), noise.seeded)

    def decode(self, payload: bytes) -> int:
        """The choice that was told."""
        return unpack(payload, 1)[0]
