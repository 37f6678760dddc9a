"""Auxo's sub-clustering of a cohort, round by round, from the updates it receives anyway.

Updates are centred and brought to length 1, so that the Euclidean distance compares directions. The first
time they are clustered by k-means; later every sub-cluster is where its labelled members are this round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from server_kit.clustering.checks import require_same_length, require_vectors
from server_kit.clustering.distances import unit_rows
from server_kit.clustering.kmeans import KMeans, means_of
from server_kit.clustering.partition import UNLABELLED, Clustering, Labels, as_labels
from server_kit.errors import InvalidSetting, InvalidSummary


@dataclass(frozen=True)
class OnlineEvidence:
    """What this round could say. `skipped` gives the reason where it could say nothing."""

    labelled_before: int
    present: tuple[int, ...] = ()
    """The sub-clusters that had a labelled participant."""
    skipped: str = ""


@dataclass(frozen=True)
class OnlineKMeans:
    """`clusters` sub-clusters whose labels are revised every round; labels may stay `UNLABELLED`."""

    clusters: int = 2
    min_participants: int = 5

    def __post_init__(self) -> None:
        if self.clusters < 2:
            raise InvalidSetting(f"a cohort has at least 2 sub-clusters, got {self.clusters}; nothing was computed")

    def first(self, updates: torch.Tensor, rng: np.random.Generator) -> Clustering[OnlineEvidence]:
        """Label this round's participants by k-means."""
        if len(updates) < self.min_participants:
            return _unchanged(np.full(len(updates), UNLABELLED), "too few participants")
        found = KMeans(self.clusters).cluster(directions(updates), rng)
        return Clustering(found.labels, OnlineEvidence(0, tuple(range(found.count))))

    def later(self, updates: torch.Tensor, stored: Labels) -> Clustering[OnlineEvidence]:
        """Label every participant by the nearest centre of those who came with a label.

        With a sub-cluster absent this round, nobody could be assigned to it, and its members would all drift
        away. So only the quarter that is nearest to a centre gets that centre's label; the rest keep theirs.
        """
        known = as_labels(stored)
        require_same_length(len(updates), len(known), "updates and stored labels")
        if known.max(initial=UNLABELLED) >= self.clusters:
            raise InvalidSummary(f"a stored label is beyond the {self.clusters} sub-clusters; nothing was labelled")
        if len(updates) < self.min_participants:
            return _unchanged(known, "too few participants")
        present = np.unique(known[known != UNLABELLED])
        if len(present) == 0:
            return _unchanged(known, "no labelled participant")
        return self._nearest(directions(updates), known, present)

    def _nearest(self, points: torch.Tensor, known: Labels, present: Labels) -> Clustering[OnlineEvidence]:
        labelled = torch.from_numpy(np.flatnonzero(known != UNLABELLED)).to(points.device)
        rank = torch.from_numpy(np.searchsorted(present, known[known != UNLABELLED])).to(points.device)
        centres = means_of(points[labelled], rank)
        distance, nearest = torch.cdist(points, centres).min(dim=1)
        proposed = present[nearest.cpu().numpy()]
        if len(present) < self.clusters:
            closest = torch.argsort(distance, stable=True)[: max(1, len(points) // 4)].cpu().numpy()
            revised = known.copy()
            revised[closest] = proposed[closest]
            proposed = revised
        evidence = OnlineEvidence(int((known != UNLABELLED).sum()), tuple(int(label) for label in present))
        return Clustering(proposed, evidence)


def directions(updates: torch.Tensor) -> torch.Tensor:
    """Each update relative to the mean of all, at length 1; an update equal to the mean stays zero."""
    require_vectors(updates, "updates")
    return unit_rows(updates - updates.mean(dim=0))


def _unchanged(labels: Labels, reason: str) -> Clustering[OnlineEvidence]:
    return Clustering(labels.astype(np.int64), OnlineEvidence(int((labels != UNLABELLED).sum()), skipped=reason))
