"""Equal devices are found by hashing and are one point from then on: they are never split, and never compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Positions = npt.NDArray[np.int64]

ELEMENTS_AT_ONCE = 1 << 22
MIXING_SEED = 0x5EED


def first_of_equals(points: torch.Tensor) -> Positions:
    """For each row the position of the first row that equals it."""
    return confirmed(points, same_hash(row_hashes(points)))


def same_hash(hashes: npt.NDArray[np.uint64]) -> Positions:
    """For each row the position of the first row with its hash."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def confirmed(points: torch.Tensor, candidates: Positions) -> Positions:
    """The candidates that really are equal; rows that only share a hash are compared in full."""
    differs = np.concatenate(
        [
            (points[rows] != points[torch.from_numpy(candidates[rows]).to(points.device)]).any(dim=1).cpu().numpy()
            for rows in blocks_of(points)
        ]
    )
    rest = np.flatnonzero(differs)
    if len(rest) == 0:
        return candidates
    _, first, inverse = np.unique(points[rest].cpu().numpy(), axis=0, return_index=True, return_inverse=True)
    firsts = candidates.copy()
    firsts[rest] = rest[first[inverse.ravel()]]
    return firsts


def row_hashes(points: torch.Tensor) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each row, equal for equal rows."""
    mixing = np.random.Generator(np.random.PCG64(MIXING_SEED))
    factors = mixing.integers(0, 2**64, size=points.shape[1], dtype=np.uint64) | np.uint64(1)
    hashes = np.empty(len(points), dtype=np.uint64)
    for rows in blocks_of(points):
        block = points[rows].double().cpu().numpy() + 0.0  # −0 becomes 0, and the block is ours to change
        words = block.view(np.uint64)
        words ^= words >> np.uint64(29)  # what was float32 has only zeros there
        hashes[rows] = (words * factors).sum(axis=1, dtype=np.uint64)
    return hashes


def blocks_of(points: torch.Tensor) -> list[slice]:
    """All rows, as many at a time as make a block of some megabytes."""
    rows = max(1, ELEMENTS_AT_ONCE // points.shape[1])
    return [slice(start, start + rows) for start in range(0, len(points), rows)]
