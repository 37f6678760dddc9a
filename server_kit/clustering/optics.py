"""OPTICS over devices: groups of any shape and number, and devices like no other on their own.

Up to `exact_up_to` devices it is OPTICS itself; above, for the `min_samples` = 2 that HACCS uses, the
spanning tree of `tree_at_scale`. Noise points become singletons, so that a rare distribution stays represented.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from server_kit.clustering.automatic_eps import AutomaticEps, Jump
from server_kit.clustering.checks import require_vectors
from server_kit.clustering.distances import DistanceRows, EuclideanRows
from server_kit.clustering.partition import Clustering
from server_kit.clustering.reachability import Reachability, reachability
from server_kit.clustering.spanning_tree import SpanningTree
from server_kit.clustering.tree_at_scale import spanning_tree_at_scale
from server_kit.errors import InvalidSetting


@dataclass(frozen=True)
class OpticsEvidence:
    """Where the cut was made and on what ground. `jump` is None where eps was given."""

    eps: float
    jump: Jump | None
    structure: SpanningTree | Reachability

    @property
    def exact(self) -> bool:
        """Whether this is OPTICS itself; if not, see what `SpanningTree` promises."""
        return isinstance(self.structure, Reachability)


@dataclass(frozen=True)
class Optics:
    """Clusters are what stays connected by steps of at most `eps`: a distance, or a rule to find one."""

    eps: float | AutomaticEps = field(default_factory=AutomaticEps)
    min_samples: int = 2
    exact_up_to: int = 5_000
    neighbours: int = 8
    candidates: int = 4_096

    def __post_init__(self) -> None:
        if not isinstance(self.eps, AutomaticEps) and not self.eps >= 0:
            raise InvalidSetting(f"eps is a distance, 0 or more, got {self.eps:g}; nothing was computed")
        if min(self.neighbours, self.candidates) < 1:
            raise InvalidSetting("at least one neighbour and one candidate are looked at; nothing was computed")

    def cluster(self, points: torch.Tensor | DistanceRows, rng: np.random.Generator) -> Clustering[OpticsEvidence]:
        """Group points by Euclidean distance, or by rows of any; `rng` serves only fleets above `exact_up_to`."""
        if not isinstance(points, torch.Tensor):
            return self.cluster_rows(points)
        require_vectors(points, "points")
        if len(points) <= self.exact_up_to:
            return self.cluster_rows(EuclideanRows(points))
        if self.min_samples != 2:
            raise InvalidSetting(
                f"min_samples={self.min_samples} is computed exactly, for at most {self.exact_up_to} devices, and "
                f"there are {len(points)}; use min_samples=2 or raise exact_up_to; nothing was computed"
            )
        return self._cut(spanning_tree_at_scale(points, rng, self.neighbours, self.candidates))

    def cluster_rows(self, distances: DistanceRows) -> Clustering[OpticsEvidence]:
        """Group devices by any distance, exactly, in n² time."""
        return self._cut(reachability(distances, self.min_samples))

    def _cut(self, structure: SpanningTree | Reachability) -> Clustering[OpticsEvidence]:
        jump, eps = None, self.eps
        if isinstance(eps, AutomaticEps):
            jump = eps.jump(structure.devices, structure.edges, structure.clusters_at)
            eps = jump.eps
        return Clustering(structure.clusters_at(eps), OpticsEvidence(eps, jump, structure))
