"""Points in cells: a coarse k-means whose cells lie side by side in memory, so that only near ones are compared.

A neighbour of a point is nearly always in the point's own cell or in one of the next few, and comparing
whole cells is one matrix product. No cell is larger than four times the mean: a crowd of nearly equal
points would otherwise be compared with itself in full.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.kmeans import lloyd, nearest_centre

Positions = npt.NDArray[np.int64]

TRAINING_POINTS_PER_CELL = 40
TRAINING_ITERATIONS = 6
LARGEST_OVER_MEAN = 4
FEWEST_IN_CELL = 64


@dataclass(frozen=True)
class Cells:
    """All points, sorted by cell. Positions below are positions in `points`; `order` leads back."""

    points: torch.Tensor
    order: Positions
    bounds: Positions
    centres: torch.Tensor

    def __len__(self) -> int:
        return len(self.centres)

    def slices(self) -> Iterator[slice]:
        """Where each cell lies."""
        return (slice(int(start), int(stop)) for start, stop in itertools.pairwise(self.bounds))

    def nearest_cells(self, probes: int) -> Positions:
        """For each cell itself, then the `probes − 1` whose centres are nearest to its own."""
        near = [
            torch.cdist(block, self.centres).topk(min(probes, len(self)), largest=False).indices
            for block in torch.split(self.centres, 1024)
        ]
        found: Positions = torch.cat(near).cpu().numpy()
        own = np.arange(len(self))[:, None]
        # Two cells may share a centre; the cell itself comes first all the same.
        others = np.argsort(found == own, axis=1, kind="stable")[:, : found.shape[1] - 1]
        return np.hstack([own, np.take_along_axis(found, others, axis=1)])


def make_cells(points: torch.Tensor, rng: np.random.Generator) -> Cells:
    """About 2√n cells of √n/2 points each, of no fewer than `FEWEST_IN_CELL` on average."""
    count = max(1, min(int(2 * math.sqrt(len(points))), len(points) // FEWEST_IN_CELL))
    training = _sample(points, count * TRAINING_POINTS_PER_CELL, rng)
    start = _sample(training, count, rng)
    labels, _ = nearest_centre(points, lloyd(training, start, TRAINING_ITERATIONS))
    order = torch.argsort(labels, stable=True)
    sizes = torch.bincount(labels).cpu().numpy()
    bounds = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
    largest = LARGEST_OVER_MEAN * math.ceil(len(points) / count)
    bounds = _cut_large(points, order, bounds, largest)
    in_order = points[order]
    centres = torch.stack([in_order[start:stop].mean(dim=0) for start, stop in itertools.pairwise(bounds)])
    return Cells(in_order, order.cpu().numpy(), bounds, centres)


def _sample(points: torch.Tensor, count: int, rng: np.random.Generator) -> torch.Tensor:
    if count >= len(points):
        return points
    return points[torch.from_numpy(rng.choice(len(points), count, replace=False)).to(points.device)]


def _cut_large(points: torch.Tensor, order: torch.Tensor, bounds: Positions, largest: int) -> Positions:
    """Cut each cell above `largest` into slabs, across the direction to its farthest point."""
    cuts = [np.zeros(1, dtype=np.int64)]
    for start, stop in itertools.pairwise(bounds):
        pieces = math.ceil((stop - start) / largest)
        if pieces > 1:
            cell = points[order[start:stop]]
            outwards = cell - cell.mean(dim=0)
            direction = outwards[outwards.square().sum(dim=1).argmax()]
            order[start:stop] = order[start:stop][torch.argsort(outwards @ direction, stable=True)]
        cuts.append(np.linspace(start, stop, pieces + 1).astype(np.int64)[1:])
    return np.concatenate(cuts)
