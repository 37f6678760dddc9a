"""OPTICS in full: the order in which devices are reached, and how far each was from what was reached before.

Exact for any metric and any `min_samples`, in n² time and n memory: distances come row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server_kit.clustering.distances import DistanceRows
from server_kit.clustering.partition import Labels, with_noise_as_singletons
from server_kit.clustering.spanning_tree import Edges, SpanningTree
from server_kit.errors import InvalidSetting

Positions = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reachability:
    """The reachability plot. `lengths` and `predecessors` are by device; the first device is reached from none."""

    order: Positions
    lengths: Lengths
    predecessors: Positions
    core_distances: Lengths
    min_samples: int

    @property
    def devices(self) -> int:
        return len(self.order)

    @property
    def edges(self) -> Edges:
        """From where each device was reached, and how far that was, in the order of the plot."""
        reached = self.order[self.predecessors[self.order] >= 0]
        return Edges(self.predecessors[reached], reached, self.lengths[reached])

    def clusters_at(self, eps: float) -> Labels:
        """DBSCAN's clusters at `eps`; noise becomes singletons."""
        far = ~np.isfinite(self.lengths) | (self.lengths > eps)
        dense = np.isfinite(self.core_distances) & (self.core_distances <= eps)
        groups = np.empty(len(self.order), dtype=np.int64)
        groups[self.order] = np.cumsum((far & dense)[self.order]) - 1
        groups[far & ~dense] = -1
        return with_noise_as_singletons(groups)

    def clusters_by_steepness(self, xi: float = 0.05) -> Labels:
        """The clusters between steep flanks of the plot (OPTICS ξ, by scikit-learn); noise becomes singletons."""
        from sklearn.cluster import cluster_optics_xi

        if not 0 < xi < 1:
            raise InvalidSetting(f"the steepness xi lies between 0 and 1, got {xi:g}; nothing was computed")
        if len(self.order) < self.min_samples:
            return with_noise_as_singletons(np.full(len(self.order), -1))
        with np.errstate(divide="ignore", invalid="ignore"):  # equal devices are at distance 0
            groups, _ = cluster_optics_xi(
                reachability=self.lengths,
                predecessor=self.predecessors,
                ordering=self.order,
                min_samples=self.min_samples,
                xi=xi,
            )
        return with_noise_as_singletons(groups)

    def tree(self) -> SpanningTree:
        """The minimum spanning tree, which is what the plot shows when `min_samples` is 2."""
        if self.min_samples > 2:
            raise InvalidSetting("the plot is a spanning tree only for min_samples = 2; nothing was computed")
        return SpanningTree(self.devices, self.edges, exact=True)


def reachability(distances: DistanceRows, min_samples: int = 2) -> Reachability:
    """Walk from device 0 always to the nearest unreached device, the first of equals."""
    if min_samples < 2:
        raise InvalidSetting(
            f"min_samples counts the device itself and starts at 2, got {min_samples}; nothing was computed"
        )
    # With 2 a core distance never exceeds a distance, so the walk does not need it.
    core = core_distances(distances, min_samples) if min_samples > 2 else np.zeros(len(distances))
    order, lengths, predecessors = _walk(distances, core)
    if min_samples == 2:
        core = _shortest_edges(lengths, predecessors)
    return Reachability(order, lengths, predecessors, core, min_samples)


def core_distances(distances: DistanceRows, min_samples: int) -> Lengths:
    """How far each device's `min_samples`-th nearest is, itself included; infinite where there are too few."""
    count = len(distances)
    if min_samples > count:
        return np.full(count, np.inf)
    return np.array([np.partition(distances.row(device), min_samples - 1)[min_samples - 1] for device in range(count)])


def _walk(distances: DistanceRows, core: Lengths) -> tuple[Positions, Lengths, Positions]:
    count = len(core)
    lengths, predecessors = np.full(count, np.inf), np.full(count, -1, dtype=np.int64)
    order, waiting = np.empty(count, dtype=np.int64), np.ones(count, dtype=bool)
    for step in range(count):
        left = np.flatnonzero(waiting)
        device = int(left[np.argmin(lengths[left])])
        order[step], waiting[device] = device, False
        if np.isfinite(core[device]):
            through = np.maximum(distances.row(device), core[device])
            nearer = waiting & (through < lengths)
            lengths[nearer], predecessors[nearer] = through[nearer], device
    return order, lengths, predecessors


def _shortest_edges(lengths: Lengths, predecessors: Positions) -> Lengths:
    """The distance of each device to its nearest one, which is always an edge of the tree."""
    reached = predecessors >= 0
    shortest = lengths.copy()
    np.minimum.at(shortest, predecessors[reached], lengths[reached])
    return shortest
