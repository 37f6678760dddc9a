"""The spanning tree of all devices: what single linkage, and OPTICS with `min_samples` = 2, know about them.

Cut every edge longer than eps, and the pieces are the clusters that OPTICS extracts at eps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.partition import Labels, in_order_of_appearance

Positions = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.float64]

EDGES_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Edges:
    """Pairs of devices and how far apart they are."""

    sources: Positions
    targets: Positions
    lengths: Lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def joined_with(self, other: Edges) -> Edges:
        return Edges(
            np.concatenate([self.sources, other.sources]),
            np.concatenate([self.targets, other.targets]),
            np.concatenate([self.lengths, other.lengths]),
        )

    def selected(self, positions: Positions) -> Edges:
        return Edges(self.sources[positions], self.targets[positions], self.lengths[positions])

    def renamed(self, names: Positions) -> Edges:
        """The same edges between devices `names[i]` instead of i."""
        return Edges(names[self.sources], names[self.targets], self.lengths)


@dataclass(frozen=True)
class SpanningTree:
    """`devices` − 1 edges that connect all devices. Every length is the true distance of its two ends.

    An exact tree is a minimum spanning tree. Any other has edges that are too long here and there, never
    too short: cut at the same eps, its clusters are parts of the exact ones and never a mixture of them.
    """

    devices: int
    edges: Edges
    exact: bool

    @property
    def lengths(self) -> Lengths:
        return self.edges.lengths

    def clusters_at(self, eps: float) -> Labels:
        """The pieces that remain when every edge longer than `eps` is cut."""
        short = self.edges.lengths <= eps
        return components(self.devices, self.edges.sources[short], self.edges.targets[short])


def components(devices: int, sources: Positions, targets: Positions) -> Labels:
    """The connected pieces of a graph, labelled in order of appearance."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(sources), dtype=np.int8), (sources, targets)), shape=(devices, devices))
    _, pieces = connected_components(graph, directed=False)
    return in_order_of_appearance(pieces)


def minimum_spanning_forest(devices: int, edges: Edges) -> Edges:
    """The shortest edges that connect what `edges` connect."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    # SciPy reads a zero as "no edge"; the smallest positive length keeps it and its place in the order.
    shown = np.maximum(edges.lengths, np.finfo(np.float64).tiny)
    graph = csr_array((shown, (edges.sources, edges.targets)), shape=(devices, devices))
    forest = minimum_spanning_tree(graph).tocoo()
    return Edges(forest.row.astype(np.int64), forest.col.astype(np.int64), forest.data)


def measured(points: torch.Tensor, pairs: Positions) -> Edges:
    """Edges between these pairs of points, with lengths computed from differences in float64."""
    lengths = np.empty(len(pairs))
    for start in range(0, len(pairs), EDGES_AT_ONCE):
        block = slice(start, start + EDGES_AT_ONCE)
        ends = points[torch.from_numpy(pairs[block]).to(points.device)].double()
        lengths[block] = torch.linalg.vector_norm(ends[:, 0] - ends[:, 1], dim=1).cpu().numpy()
    return Edges(pairs[:, 0], pairs[:, 1], lengths)
