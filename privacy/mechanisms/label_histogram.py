"""P(y): how many of a device's records carry each label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.exact import LARGEST_COUNTS, Number, exact_epsilon, whole
from privacy.packing import pack, unpack
from privacy.readable import whole_number
from privacy.release import Answer, Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privacy.randomness import NoiseSource


@dataclass(frozen=True)
class LabelHistogram:
    """Counts of each declared label, ε-DP for one record under the named relation.

    Adding or removing a record changes one count by one: L1 sensitivity 1, scale 1/ε. Replacing one
    changes two counts by one: sensitivity 2, scale 2/ε, and the cost is two parts of ε/2 on disjoint
    counts, which composes more tightly than one of ε. All declared labels are released, absent ones
    too; unknown ones are dropped in silence, because an error would depend on private data.
    """

    num_labels: int
    epsilon: Number
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "label_histogram"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_labels", whole(self.num_labels, "num_labels", 1, LARGEST_COUNTS))
        object.__setattr__(self, "epsilon", exact_epsilon(self.epsilon))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))

    @property
    def terms(self) -> dict[str, int | str]:
        return {"num_labels": self.num_labels, "epsilon": str(self.epsilon), "relation": self.relation.value}

    @property
    def cost(self) -> PrivacyCost:
        return PrivacyCost.pure(exact_epsilon(self.epsilon), PrivacyUnit.RECORD, self.relation, self.relation.changes)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity=f"L1 {self.relation.changes}: one record, {self.relation.value}",
            noise=f"discrete Laplace of scale {self.relation.changes}/ε on every declared label",
            proof="Ghosh, Roughgarden, Sundararajan 2012; sampler of Canonne, Kamath, Steinke 2020",
        )

    def check(self, data: Sequence[int]) -> None:
        """Labels are one-dimensional integers; their number and values are not looked at."""
        if getattr(data, "ndim", 1) != 1 or getattr(getattr(data, "dtype", None), "kind", "i") not in "iub":
            raise InvalidTerms(
                "labels must be a one-dimensional sequence of integers; convert them first; nothing was booked"
            )

    def answer(self, data: Sequence[int], noise: NoiseSource) -> Answer:
        scale = self.relation.changes / exact_epsilon(self.epsilon)
        drawn = noise.discrete_laplace_vector(scale, self.num_labels)
        counts = count_labels(data, self.num_labels)
        return Answer(pack(map(int.__add__, counts, drawn)), noise.seeded)

    def decode(self, payload: bytes) -> list[int]:
        """The noised counts: signed integers, neither clipped nor normalised."""
        return unpack(payload, self.num_labels)


def count_labels(labels: Sequence[int] | Any, num_labels: int) -> list[int]:
    """How often each of 0..num_labels-1 occurs; anything else is not counted."""
    if hasattr(labels, "__array__"):
        import numpy as np

        array = np.asarray(labels)
        known = array[(array >= 0) & (array < num_labels)].astype(np.int64)
        counted: list[int] = np.bincount(known, minlength=num_labels).tolist()
        return counted
    counts = [0] * num_labels
    for label in labels:
        index = whole_number(label)
        if index is not None and 0 <= index < num_labels:
            counts[index] += 1
    return counts
