"""How far apart two devices are, without ever holding a matrix of all pairs.

Hellinger, L2 and cosine distances are Euclidean distances after an embedding: embed once, then work on
points. What has no such embedding (the average of Hellinger distances over labels) is asked for row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.checks import as_tensor, require_finite, require_rows, require_vectors
from server_kit.errors import InvalidSummary

Distances = npt.NDArray[np.float64]

COLUMNS_AT_ONCE = 1 << 16


class DistanceRows(Protocol):
    """Distances from one device to all, one row at a time."""

    def __len__(self) -> int: ...

    def row(self, device: int) -> Distances:
        """The distance of `device` to every device, 0 to itself."""


@dataclass(frozen=True)
class EuclideanRows:
    """Straight-line distances between points, in float64."""

    points: torch.Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", require_vectors(self.points, "points").double())

    def __len__(self) -> int:
        return len(self.points)

    def row(self, device: int) -> Distances:
        # Differences, not the expanded square: equal points are at 0 exactly.
        distances: Distances = torch.linalg.vector_norm(self.points - self.points[device], dim=1).cpu().numpy()
        return distances


@dataclass(frozen=True)
class AverageHellingerRows:
    """P(X|y): the Hellinger distance of the feature histograms, averaged over the labels that either device has.

    `tables` counts features: device x label x bin. A label that only one of the two has counts as 1, the
    largest distance there is; two devices without any label are at 0.
    """

    tables: torch.Tensor

    def __post_init__(self) -> None:
        tables = as_tensor(self.tables)
        if tables.ndim != 3 or 0 in tables.shape:
            raise InvalidSummary(
                f"tables are device x label x bin, got shape {tuple(tables.shape)}; nothing was computed"
            )
        require_counts(tables)
        object.__setattr__(self, "tables", frequencies(tables).sqrt().double())

    def __len__(self) -> int:
        return len(self.tables)

    def row(self, device: int) -> Distances:
        roots, own = self.tables, self.tables[device]
        has, own_has = roots.any(dim=2), own.any(dim=1)
        by_label = torch.linalg.vector_norm(roots - own, dim=2) / math.sqrt(2)
        by_label = torch.where(has & own_has, by_label, (has ^ own_has).double())
        distances: Distances = (by_label.sum(dim=1) / (has | own_has).sum(dim=1).clamp_min(1)).cpu().numpy()
        return distances


def require_counts(counts: torch.Tensor) -> None:
    """Raise where counts are not finite or are negative; noised ones are denoised first."""
    require_finite(counts, "histograms")
    if bool((counts < 0).any()):
        raise InvalidSummary("a histogram has negative counts; denoise noised ones first; nothing was computed")


def frequencies(counts: torch.Tensor) -> torch.Tensor:
    """Each histogram (the last axis) divided by its total, as float32 or wider; an empty one stays zero."""
    wide = counts if counts.is_floating_point() else counts.to(torch.float32)
    total = counts.sum(dim=-1, keepdim=True, dtype=torch.float64)
    return wide / torch.where(total > 0, total, 1).to(wide.dtype)


def hellinger_points(counts: torch.Tensor) -> torch.Tensor:
    """Points whose Euclidean distance is the Hellinger distance; an empty histogram is at √½ from all others."""
    require_rows(counts, "histograms")
    require_counts(counts)
    return frequencies(counts).sqrt() / math.sqrt(2)


def l2_points(counts: torch.Tensor) -> torch.Tensor:
    """Points whose Euclidean distance is the L2 distance of the frequencies; an empty histogram is the origin."""
    require_rows(counts, "histograms")
    require_counts(counts)
    return frequencies(counts)


def unit_rows(vectors: torch.Tensor) -> torch.Tensor:
    """Each row at length 1; a zero row stays zero."""
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / torch.where(norms > 0, norms, 1)


def cosine_points(vectors: torch.Tensor) -> torch.Tensor:
    """Points whose squared Euclidean distance is 1 − cosine."""
    return unit_rows(require_vectors(vectors)) / math.sqrt(2)


def gram_matrix(vectors: torch.Tensor, centred: bool = False) -> torch.Tensor:
    """All products of two rows, summed in float64 and read a block of columns at a time, so without a copy of them."""
    require_vectors(vectors)
    gram = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors.device)
    for columns in torch.split(vectors, COLUMNS_AT_ONCE, dim=1):
        block = columns - columns.mean(dim=0) if centred else columns
        gram += block @ block.T
    return (gram + gram.T) / 2


def cosine_similarity(vectors: torch.Tensor) -> torch.Tensor:
    """The cosine of each pair (float64), for the members of one cohort; 0 to a zero vector, 1 to oneself."""
    gram = gram_matrix(vectors)
    norms = gram.diagonal().clamp_min(0).sqrt()
    inverse = torch.where(norms > 0, 1 / norms, 0)
    return (gram * inverse[:, None] * inverse).clamp(-1, 1).fill_diagonal_(1.0)


def mean_absolute_difference_of_cosines(similarity: torch.Tensor) -> torch.Tensor:
    """MADC of FlexCFL: how differently two devices look at all the others, from the matrix of cosines.

    Two devices have no others, so their distance is 0 by definition.
    """
    count = len(similarity)
    distance = torch.zeros_like(similarity)
    for device in range(count):
        differences = (similarity - similarity[device]).abs()
        # What two devices say about each other and about themselves is no opinion about the others.
        others = differences.sum(dim=1) - differences[:, device] - differences.diagonal()
        distance[device] = others / max(1, count - 2)
    return distance.fill_diagonal_(0.0).clamp_min(0)
