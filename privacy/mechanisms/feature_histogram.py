"""P(X|y): for each label, how the values of its records' features are distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.exact import LARGEST_COUNTS, Number, check_range, exact_epsilon, whole
from privacy.packing import pack, unpack
from privacy.readable import halving_for
from privacy.release import Answer, Guarantee

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource

    LabelledFeatures = tuple[NDArray[np.floating], NDArray[np.integer]]


@dataclass(frozen=True)
class FeatureHistogram:
    """One table of counts, label by bin, ε-DP for one record under the named relation.

    A record falls into one row and adds exactly `features_per_record` = F counts to it: L1 sensitivity
    F, so scale F/ε (2F/ε for replace-one). Divided by F, each record has mass 1 and the noise is that
    of a label histogram. F is declared, never read off the data. Row sums divided by F are P(y), for
    free.
    """

    num_labels: int
    num_bins: int
    features_per_record: int
    epsilon: Number
    low: float = 0.0
    high: float = 1.0
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "feature_histogram"

    def __post_init__(self) -> None:
        for name in ("num_labels", "num_bins", "features_per_record"):
            object.__setattr__(self, name, whole(getattr(self, name), name, 1, LARGEST_COUNTS))
        whole(self.num_labels * self.num_bins, "num_labels times num_bins", 1, LARGEST_COUNTS)
        check_range(self.low, self.high, "bins need")
        object.__setattr__(self, "epsilon", exact_epsilon(self.epsilon))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))

    @property
    def terms(self) -> dict[str, int | str]:
        return {
            "num_labels": self.num_labels,
            "num_bins": self.num_bins,
            "features_per_record": self.features_per_record,
            "epsilon": str(self.epsilon),
            "low": str(self.low),
            "high": str(self.high),
            "relation": self.relation.value,
        }

    @property
    def cost(self) -> PrivacyCost:
        # Replace-one takes F counts away and adds F: two parts of ε/2, as for labels.
        return PrivacyCost.pure(exact_epsilon(self.epsilon), PrivacyUnit.RECORD, self.relation, self.relation.changes)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity=f"L1 {self.relation.changes}·F, F features declared per record: one record, {self.relation}",
            noise=f"discrete Laplace of scale {self.relation.changes}·F/ε on every cell of the label-by-bin table",
            proof="Ghosh, Roughgarden, Sundararajan 2012; composition within the table by disjoint changes",
        )

    def check(self, data: LabelledFeatures) -> None:
        """(features, labels): n x F numbers and n integers. F must be the declared one."""
        features, labels = data
        if features.ndim != 2 or features.shape[1] != self.features_per_record or features.dtype.kind not in "fiub":
            raise InvalidTerms(
                f"features must be an array of records by {self.features_per_record} numbers, as declared; "
                "nothing was booked"
            )
        if labels.ndim != 1 or labels.dtype.kind not in "iub" or len(labels) != len(features):
            raise InvalidTerms("labels must be one integer for each record of the features; nothing was booked")

    def answer(self, data: LabelledFeatures, noise: NoiseSource) -> Answer:
        scale = self.relation.changes * self.features_per_record / exact_epsilon(self.epsilon)
        drawn = noise.discrete_laplace_vector(scale, self.num_labels * self.num_bins)
        return Answer(pack(map(int.__add__, self._counts(*data), drawn)), noise.seeded)

    def decode(self, payload: bytes) -> list[list[int]]:
        """The noised table, one row a label, in units of 1/F of a record."""
        flat = unpack(payload, self.num_labels * self.num_bins)
        return [flat[row * self.num_bins : (row + 1) * self.num_bins] for row in range(self.num_labels)]

    def label_counts(self, payload: bytes) -> list[float]:
        """P(y) from the same release: row sums in records. Post-processing, so it costs nothing."""
        return [sum(row) / self.features_per_record for row in self.decode(payload)]

    def _counts(self, features: NDArray[np.floating], labels: NDArray[np.integer]) -> list[int]:
        import numpy as np

        known = (labels >= 0) & (labels < self.num_labels)
        halving = halving_for(self.low, self.high)
        low, high = float(self.low) * halving, float(self.high) * halving
        with np.errstate(all="ignore"):  # a warning would tell of a record
            # A record must add F counts whatever it holds: values outside the range go to the end bins,
            # and what is not a number to the first.
            values = features[known].astype(np.float64) * halving
            values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
            position = (np.clip(values, low, high) - low) / (high - low)
        bins = np.minimum((position * self.num_bins).astype(np.int64), self.num_bins - 1)
        cells = labels[known].astype(np.int64)[:, None] * self.num_bins + bins
        counted: list[int] = np.bincount(cells.ravel(), minlength=self.num_labels * self.num_bins).tolist()
        return counted
