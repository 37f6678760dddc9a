"""A choice by the votes of a device's records: ε for one record, and hardly ever wrong where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.exact import LARGEST_COUNTS, Number, exact_epsilon, whole
from privacy.packing import pack, unpack
from privacy.readable import truncated
from privacy.release import Answer, Guarantee

if TYPE_CHECKING:
    from privacy.randomness import NoiseSource


@dataclass(frozen=True)
class VotedChoice:
    """Of `num_choices` the one that most records vote for, ε-DP for one record, by permute-and-flip.

    Choices are looked at in random order, and one that is d votes behind is taken with probability e^(−ε·d/changes).
    One record in the place of another takes a vote from one choice and gives it to another, hence `changes` 2; one
    more or less changes a single count upwards or downwards, hence 1. The order, and how far behind each choice may be
    to be taken, are drawn before the votes are read.
    """

    num_choices: int
    epsilon: Number
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "voted_choice"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_choices", whole(self.num_choices, "num_choices", 2, LARGEST_COUNTS))
        object.__setattr__(self, "epsilon", exact_epsilon(self.epsilon))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))

    @property
    def terms(self) -> dict[str, int | str]:
        return {"num_choices": self.num_choices, "epsilon": str(self.epsilon), "relation": self.relation.value}

    @property
    def cost(self) -> PrivacyCost:
        return PrivacyCost.pure(exact_epsilon(self.epsilon), PrivacyUnit.RECORD, self.relation)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity="a record has one vote",
            noise="a choice d votes behind is taken, when its turn comes, with probability e^(-ε·d/changes)",
            proof="McKenna, Sheldon 2020",
        )

    def check(self, data: Sequence[int]) -> None:
        """Votes are integers; their values are private and not looked at."""
        if not hasattr(data, "__len__"):
            raise InvalidTerms("votes must be a sequence of integers; nothing was booked")

    def answer(self, data: Sequence[int], noise: NoiseSource) -> Answer:
        drawn = self._drawn(noise)
        counts = [0] * self.num_choices
        for vote in data:
            # A vote out of range, or none at all, would be a mistake of the caller; an error here would depend on it.
            counts[(truncated(vote) or 0) % self.num_choices] += 1
        most = max(counts)
        told = next(choice for choice, allowed in drawn if most - counts[choice] <= allowed)
        return Answer(pack([told]), noise.seeded)

    def decode(self, payload: bytes) -> int:
        """The choice that was told."""
        return unpack(payload, 1)[0]

    def _drawn(self, noise: NoiseSource) -> list[tuple[int, int]]:
        """The choices in random order, each with the most votes that it may lack: d or more with e^(−ε·d/changes)."""
        epsilon, left = exact_epsilon(self.epsilon), list(range(self.num_choices))
        order = [left.pop(noise.below(len(left))) for _ in range(self.num_choices)]
        rate = (epsilon.numerator, epsilon.denominator * self.relation.changes)
        return [(choice, noise.geometric_exp(*rate)) for choice in order]
