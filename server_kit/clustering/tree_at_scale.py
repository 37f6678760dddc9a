"""A spanning tree of a hundred thousand or a million devices, in minutes and without a distance matrix.

    equal devices become one  ->  cells  ->  a few neighbours of each  ->  certain edges  ->  bridges

What is promised is what `SpanningTree` says of a tree that is not exact. What is measured is in
docs/decisions/0007-clustering-at-scale.md.
"""

from __future__ import annotations

import numpy as np
import torch

from server_kit.clustering.bridges import bridged
from server_kit.clustering.cells import make_cells
from server_kit.clustering.certain_edges import certain_edges, horizons
from server_kit.clustering.checks import require_vectors
from server_kit.clustering.duplicates import first_of_equals
from server_kit.clustering.neighbours import near_pairs
from server_kit.clustering.spanning_tree import Edges, SpanningTree, measured, minimum_spanning_forest


def spanning_tree_at_scale(
    points: torch.Tensor, rng: np.random.Generator, neighbours: int = 8, candidates: int = 4_096
) -> SpanningTree:
    """Connect all points by their near neighbours; more neighbours and candidates cost time and miss less."""
    first = first_of_equals(require_vectors(points, "points"))
    distinct = np.flatnonzero(first == np.arange(len(points)))
    repeated = np.flatnonzero(first != np.arange(len(points)))
    equal = Edges(first[repeated], repeated, np.zeros(len(repeated)))
    tree = _tree_of_distinct(points[torch.from_numpy(distinct).to(points.device)], rng, neighbours, candidates)
    return SpanningTree(len(points), tree.renamed(distinct).joined_with(equal), exact=False)


def _tree_of_distinct(points: torch.Tensor, rng: np.random.Generator, neighbours: int, candidates: int) -> Edges:
    if len(points) == 1:
        return Edges(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
    # Candidates are found by matrix products, so in float32 and around the origin; lengths come from the points.
    cells = make_cells((points - points.mean(dim=0)).float(), rng)
    near = measured(points, near_pairs(cells, neighbours, candidates))
    forest = minimum_spanning_forest(len(points), near)
    return bridged(points, cells, certain_edges(len(points), forest, horizons(len(points), near)))
