"""Bridges between the pieces of a neighbour graph, so that its tree spans all devices.

Borůvka's step, again and again: every piece but the largest is joined to the piece nearest to it. Pieces are
compared part by part, where a part is what a piece has in one cell, the closest parts first and as many as the
work allowed for a step affords: all of them for a few thousand devices, the likeliest of them for more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.cells import Cells
from server_kit.clustering.partition import Labels
from server_kit.clustering.spanning_tree import Edges, components, measured
from server_kit.clustering.union_find import UnionFind

Positions = npt.NDArray[np.int64]

DISTANCES_PER_STEP = 50_000_000
FEWEST_PARTS_COMPARED = 24
MOST_PARTS_COMPARED = 2_000
DISTANCES_WORTH_A_LOOK = 64
COLUMNS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Parts:
    """What each piece has in each cell: positions `order[bounds[i]:bounds[i+1]]`, and their centre."""

    order: Positions
    bounds: Positions
    pieces: Labels
    centres: torch.Tensor

    def members(self, parts: Iterable[int]) -> Positions:
        """The positions of all points in these parts."""
        return np.concatenate([self.order[self.bounds[part] : self.bounds[part + 1]] for part in parts])


def bridged(points: torch.Tensor, cells: Cells, forest: Edges) -> Edges:
    """The forest and the bridges that make it a tree."""
    while len(forest) < len(points) - 1:
        pieces = components(len(points), forest.sources, forest.targets)
        found = measured(points, _bridges(cells, pieces[cells.order]))
        forest = forest.joined_with(_without_circles(found, pieces))
    return forest


def _parts(cells: Cells, pieces: Labels) -> Parts:
    count = len(pieces)
    cell_of = np.repeat(np.arange(len(cells)), np.diff(cells.bounds))
    order = np.lexsort((pieces, cell_of))
    changes = (np.diff(cell_of[order]) != 0) | (np.diff(pieces[order]) != 0)
    bounds = np.concatenate([[0], np.flatnonzero(changes) + 1, [count]])
    part_of = torch.from_numpy(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))).to(cells.points.device)
    in_order = cells.points[torch.from_numpy(order).to(cells.points.device)]
    sums = cells.points.new_zeros(len(bounds) - 1, cells.points.shape[1]).index_add_(0, part_of, in_order)
    centres = sums / torch.bincount(part_of)[:, None].to(sums.dtype)
    return Parts(order, bounds, pieces[order[bounds[:-1]]], centres)


def _bridges(cells: Cells, pieces: Labels) -> Positions:
    """For every piece but the largest, the nearest pair found that leads out of it."""
    parts = _parts(cells, pieces)
    by_piece = np.argsort(parts.pieces, kind="stable")
    starts = np.searchsorted(parts.pieces[by_piece], np.arange(pieces.max() + 2))
    sizes = np.bincount(pieces)
    affordable = DISTANCES_PER_STEP // len(sizes)
    pairs = [
        _nearest_outside(cells.points, parts, by_piece[starts[piece] : starts[piece + 1]], affordable)
        for piece in np.delete(np.arange(len(sizes)), sizes.argmax())
    ]
    return cells.order[np.array(pairs, dtype=np.int64)]


def _nearest_outside(points: torch.Tensor, parts: Parts, own: Positions, affordable: int) -> tuple[int, int]:
    """The nearest pair found between a piece, given by its parts, and anything else."""
    rows, others = _closest_parts(parts, own, affordable)
    found = [_nearest_pair(points, parts.members([row]), parts.members(others[rows == row])) for row in np.unique(rows)]
    return min(found)[1:]


def _closest_parts(parts: Parts, own: Positions, affordable: int) -> tuple[Positions, Positions]:
    """Pairs of an own part and another piece's, by the distance of their centres, as many as are affordable."""
    mine = torch.from_numpy(own).to(parts.centres.device)
    apart = torch.cdist(parts.centres[mine], parts.centres)
    apart[:, mine] = torch.inf
    possible = len(own) * (len(parts.pieces) - len(own))
    looked_at = min(possible, MOST_PARTS_COMPARED, FEWEST_PARTS_COMPARED + affordable // DISTANCES_WORTH_A_LOOK)
    ascending = apart.flatten().topk(looked_at, largest=False).indices.cpu().numpy()
    rows, others = np.divmod(ascending, len(parts.pieces))
    sizes = np.diff(parts.bounds)
    work = np.cumsum(sizes[own[rows]] * sizes[others])
    count = max(FEWEST_PARTS_COMPARED, int(np.searchsorted(work, affordable, side="right")))
    return own[rows[:count]], others[:count]


def _nearest_pair(points: torch.Tensor, inside: Positions, outside: Positions) -> tuple[float, int, int]:
    """How far apart the nearest of both sides are, and which they are."""
    first = points[torch.from_numpy(inside).to(points.device)]
    found = []
    for block in np.split(outside, range(COLUMNS_AT_ONCE, len(outside), COLUMNS_AT_ONCE)):
        between = torch.cdist(first, points[torch.from_numpy(block).to(points.device)])
        row, column = divmod(int(between.argmin()), len(block))
        found.append((float(between[row, column]), int(inside[row]), int(block[column])))
    return min(found)


def _without_circles(found: Edges, pieces: Labels) -> Edges:
    """Pieces may have chosen each other, or a circle: keep the shortest bridges that form none (Kruskal)."""
    joined, kept = UnionFind(int(pieces.max()) + 1), []
    for edge in np.argsort(found.lengths, kind="stable"):
        one = joined.group_of(int(pieces[found.sources[edge]]))
        other = joined.group_of(int(pieces[found.targets[edge]]))
        if one != other:
            joined.join(one, other)
            kept.append(edge)
    return found.selected(np.array(kept, dtype=np.int64))
