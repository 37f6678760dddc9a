"""K-means: centres drawn far apart (k-means++), then improved by Lloyd's iterations.

A cluster that runs empty is started again at the point farthest from its centre. Where there are fewer
different points than clusters, there are fewer clusters: equal devices are never told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from server_kit.clustering.checks import require_vectors
from server_kit.clustering.duplicates import first_of_equals
from server_kit.clustering.partition import Clustering, in_order_of_appearance
from server_kit.errors import InvalidSetting

ROWS_AT_ONCE = 4096
_FEW = 2048


@dataclass(frozen=True)
class KMeansEvidence:
    """Where the clusters are, and how tight: the sum of squared distances to the own centre."""

    centres: torch.Tensor
    inertia: float


@dataclass(frozen=True)
class KMeans:
    """At most `clusters` clusters, the tightest of `restarts` attempts."""

    clusters: int
    iterations: int = 20
    restarts: int = 4

    def __post_init__(self) -> None:
        if min(self.clusters, self.iterations, self.restarts) < 1:
            raise InvalidSetting("k-means needs at least one cluster, iteration and attempt; nothing was computed")

    def cluster(self, points: torch.Tensor, rng: np.random.Generator) -> Clustering[KMeansEvidence]:
        """Group the points; the same generator state, the same answer."""
        origin = require_vectors(points, "points").mean(dim=0)
        centred = points - origin  # far from the origin, squared distances would cancel
        attempts = [self._attempt(centred, rng) for _ in range(self.restarts)]
        labels, inertia = min(attempts, key=lambda attempt: attempt[1])
        # Rounding may differ from row to row; equal rows follow the first of them.
        ordered = in_order_of_appearance(labels.cpu().numpy()[first_of_equals(points)])
        centres = means_of(points, torch.from_numpy(ordered).to(points.device))
        return Clustering(ordered, KMeansEvidence(centres, inertia))

    def _attempt(self, points: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, float]:
        centres = lloyd(points, spread_centres(points, self.clusters, rng), self.iterations)
        labels, squared = nearest_centre(points, centres)
        return labels, float(squared.sum(dtype=torch.float64))


def spread_centres(points: torch.Tensor, clusters: int, rng: np.random.Generator) -> torch.Tensor:
    """K-means++: each next centre is a point drawn by its squared distance to the centres so far."""
    chosen = [int(rng.integers(len(points)))]
    squared = _squared_to(points, chosen[0])
    while len(chosen) < clusters and bool((squared > 0).any()):
        weights = squared.double().cpu().numpy()
        chosen.append(int(rng.choice(len(points), p=weights / weights.sum())))
        squared = torch.minimum(squared, _squared_to(points, chosen[-1]))
    return points[chosen]


def _squared_to(points: torch.Tensor, position: int) -> torch.Tensor:
    return (points - points[position]).square().sum(dim=1)


def lloyd(points: torch.Tensor, centres: torch.Tensor, iterations: int) -> torch.Tensor:
    """Move each centre to the mean of its points until none moves, or `iterations` times."""
    for _ in range(iterations):
        labels, squared = nearest_centre(points, centres)
        moved = means_of(points, labels, centres)
        _restart_empty(moved, points, labels, squared)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def nearest_centre(points: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each point the nearest centre (the first of equals) and the squared distance to it."""
    half_squares = centres.square().sum(dim=1) / 2
    # Results have their place beforehand: small ones between large temporaries would keep the memory of all of them.
    labels = torch.empty(len(points), dtype=torch.int64, device=points.device)
    squared = points.square().sum(dim=1)
    for start in range(0, len(points), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        nearest = torch.addmm(half_squares, points[rows], centres.T, alpha=-1).min(dim=1)
        labels[rows] = nearest.indices
        squared[rows] += 2 * nearest.values
    return labels, squared.clamp_min_(0)


def means_of(points: torch.Tensor, labels: torch.Tensor, where_empty: torch.Tensor | None = None) -> torch.Tensor:
    """The mean of the points under each label; a label without points keeps its row of `where_empty`."""
    count = int(labels.max()) + 1 if where_empty is None else len(where_empty)
    if len(points) <= _FEW:
        # A product is many times as fast where rows are long and few.
        sums = torch.nn.functional.one_hot(labels, count).T.to(points.dtype) @ points
    else:
        sums = points.new_zeros(count, points.shape[1]).index_add_(0, labels, points)
    sizes = torch.bincount(labels, minlength=count)
    means = sums / sizes.clamp_min(1)[:, None].to(points.dtype)
    return means if where_empty is None else torch.where(sizes[:, None] > 0, means, where_empty)


def _restart_empty(centres: torch.Tensor, points: torch.Tensor, labels: torch.Tensor, squared: torch.Tensor) -> None:
    """Put the centre of each empty cluster onto the point that is farthest from its own."""
    sizes = torch.bincount(labels, minlength=len(centres))
    empty = (sizes == 0).nonzero().flatten().tolist()
    farthest = squared.topk(min(len(empty), len(points))).indices.tolist()
    for cluster, point in zip(empty, farthest, strict=False):
        if squared[point] > 0:
            centres[cluster] = points[point]
