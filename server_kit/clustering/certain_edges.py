"""Which edges of a neighbour graph certainly belong to the minimum spanning tree.

A point's list of neighbours knows everything nearer than its last entry: the point's horizon. When the
shortest known edge out of a piece is within the horizon of every point of that piece, no unknown edge can
be shorter, so it belongs to the tree (the cut property). Two dense pieces whose points list only each other
may be connected in the graph by a long way round; such an edge is left out, and the gap is bridged later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from server_kit.clustering.spanning_tree import Edges
from server_kit.clustering.union_find import UnionFind

Lengths = npt.NDArray[np.float64]


def horizons(devices: int, near: Edges) -> Lengths:
    """How far each point's list of neighbours reaches."""
    farthest = np.zeros(devices)
    np.maximum.at(farthest, near.sources, near.lengths)
    return farthest


def certain_edges(devices: int, forest: Edges, horizon: Lengths) -> Edges:
    """Those edges of the graph's minimum spanning forest that lie within the horizon of a piece they join."""
    pieces, reach = UnionFind(devices), horizon.tolist()
    kept = []
    ascending = np.argsort(forest.lengths, kind="stable")
    columns = (ascending, forest.sources[ascending], forest.targets[ascending], forest.lengths[ascending])
    for edge, source, target, length in zip(*(column.tolist() for column in columns), strict=True):
        one, other = pieces.group_of(source), pieces.group_of(target)
        if length <= max(reach[one], reach[other]):
            pieces.join(one, other)
            reach[other] = min(reach[one], reach[other])
            kept.append(edge)
    return forest.selected(np.array(kept, dtype=np.int64))
