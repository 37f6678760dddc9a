"""Bottom-up clustering of updates: CFL's bipartition, and FL+HC's one-time clustering of a whole fleet.

Both need all pairs of distances, so they serve a cohort or a fleet of some thousand devices; sketches
(`sketches`) stand in for long updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.checks import require_vectors
from server_kit.clustering.distances import COLUMNS_AT_ONCE, cosine_similarity, gram_matrix
from server_kit.clustering.kmeans import means_of
from server_kit.clustering.partition import Clustering, Labels, in_order_of_appearance
from server_kit.errors import InvalidSetting

Linkage = Literal["average", "complete", "ward"]
Metric = Literal["cosine", "l1", "l2"]
Heights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BipartitionEvidence:
    """How alike the most alike two devices on different sides are (a cosine)."""

    cross_similarity: float

    def separates(self, gamma_max: float) -> bool:
        """CFL's check after the cut: two sides this unlike cannot come from one distribution up to `gamma_max`."""
        return math.sqrt((1 - self.cross_similarity) / 2) > gamma_max


@dataclass(frozen=True)
class LinkageEvidence:
    """Where the clusters are, and at which distances they were merged, ascending."""

    centres: torch.Tensor
    merge_heights: Heights


@dataclass(frozen=True)
class CflCriterion:
    """When CFL looks for a split: the cohort has converged on average while single devices still pull.

    ‖mean Δ‖ < `mean_norm_below` and max ‖Δ‖ > `largest_norm_above`. Norms depend on the model: as a rule, a tenth
    of the first round's largest norm, and one to ten times that.
    """

    mean_norm_below: float = 0.4
    largest_norm_above: float = 1.6
    after_round: int = 20
    min_members: int = 3

    def holds(self, updates: torch.Tensor, round_number: int) -> bool:
        """Whether this cohort of updates, in this round, should be cut in two."""
        require_vectors(updates, "updates")
        if len(updates) < self.min_members or round_number <= self.after_round:
            return False
        mean_norm = float(torch.linalg.vector_norm(updates.mean(dim=0)))
        largest_norm = float(torch.linalg.vector_norm(updates, dim=1).max())
        return mean_norm < self.mean_norm_below and largest_norm > self.largest_norm_above


def bipartition(updates: torch.Tensor) -> Clustering[BipartitionEvidence]:
    """CFL: two sides by complete linkage on −cosine; one where all are equally far. Labels go by row of `updates`."""
    similarity = cosine_similarity(updates)
    alone = np.zeros(1, dtype=np.int64)
    groups = _cut(_merges(1 - similarity, "complete"), clusters=2) if len(updates) > 1 else alone
    sides = in_order_of_appearance(groups)
    across = torch.from_numpy(sides[:, None] != sides).to(similarity.device)
    crossing = float(similarity[across].max()) if bool(across.any()) else 1.0
    return Clustering(sides, BipartitionEvidence(crossing))


@dataclass(frozen=True)
class HierarchicalClustering:
    """FL+HC: agglomerative clustering by `metric` and `linkage`, cut at a distance or into at most `clusters`."""

    metric: Metric = "l2"
    linkage: Linkage = "ward"
    distance_threshold: float | None = None
    clusters: int | None = None

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric) or self.linkage not in get_args(Linkage):
            raise InvalidSetting(f"unknown metric {self.metric!r} or linkage {self.linkage!r}; nothing was computed")
        if self.linkage == "ward" and self.metric != "l2":
            raise InvalidSetting("ward's linkage is defined for l2 only; use average or complete; nothing was computed")
        if (self.distance_threshold is None) == (self.clusters is None):
            raise InvalidSetting("give either a distance_threshold or a number of clusters; nothing was computed")
        if self.clusters is not None and self.clusters < 1:
            raise InvalidSetting(f"a fleet has at least one cluster, got {self.clusters}; nothing was computed")
        if self.distance_threshold is not None and not self.distance_threshold >= 0:
            raise InvalidSetting(f"a distance is 0 or more, got {self.distance_threshold:g}; nothing was computed")

    def cluster(self, updates: torch.Tensor, rng: np.random.Generator | None = None) -> Clustering[LinkageEvidence]:
        """Cluster all devices once; a newcomer later goes to the nearest of the centres. Chance plays no part."""
        del rng
        require_vectors(updates, "updates")
        if len(updates) == 1:
            return Clustering(np.zeros(1, dtype=np.int64), LinkageEvidence(updates.clone(), np.empty(0)))
        merges = _merges(_distances(updates, self.metric), self.linkage)
        labels = in_order_of_appearance(_cut(merges, self.clusters, self.distance_threshold))
        centres = means_of(updates, torch.from_numpy(labels).to(updates.device))
        return Clustering(labels, LinkageEvidence(centres, merges[:, 2].copy()))


def _distances(updates: torch.Tensor, metric: Metric) -> torch.Tensor:
    if metric == "cosine":
        return 1 - cosine_similarity(updates)
    if metric == "l1":
        sums = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=updates.device)
        for block in torch.split(updates, COLUMNS_AT_ONCE, dim=1):
            sums += torch.cdist(block, block, p=1)
        return sums
    gram = gram_matrix(updates, centred=True)
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp_min(0).sqrt()


def _merges(distances: torch.Tensor, linkage: Linkage) -> Heights:
    """SciPy's table of merges."""
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.spatial.distance import squareform

    symmetric = ((distances + distances.T) / 2).clamp_min(0).fill_diagonal_(0.0).cpu().numpy()
    merges: Heights = merge(squareform(symmetric, checks=False), method=linkage)
    return merges


def _cut(merges: Heights, clusters: int | None = None, distance: float | None = None) -> Labels:
    from scipy.cluster.hierarchy import fcluster

    if clusters is None:
        cut: Labels = fcluster(merges, distance, criterion="distance")
    else:
        cut = fcluster(merges, clusters, criterion="maxclust")
    return cut
