"""Sketches: long updates made short by a random projection that anyone can repeat from its seed.

Every coordinate is added, with a random sign, to one of `size` random buckets (a count sketch): products, and so
norms and cosines, keep their expectation, with a relative error of about 1/√size. Nothing but the seed is stored,
and the work is one addition for each coordinate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from server_kit.clustering.checks import require_vectors
from server_kit.errors import InvalidSetting

COORDINATES_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class CountSketch:
    """The projection to `size` numbers that belongs to `seed`, for vectors of any length.

    Buckets and signs come from Philox in raw 64-bit words, whose stream is specified and does not change
    with versions: a device and a server with the same seed make the same sketch.
    """

    seed: int
    size: int = 512

    def __post_init__(self) -> None:
        if not (0 <= self.seed < 2**64 and 1 <= self.size < 2**31):
            raise InvalidSetting("a sketch needs a seed of 64 bits and at least one bucket; nothing was computed")

    def of(self, vectors: torch.Tensor) -> torch.Tensor:
        """The sketches of these rows, in their precision."""
        require_vectors(vectors)
        sketches = vectors.new_zeros(len(vectors), self.size)
        for columns, buckets, signs in self._blocks(vectors.shape[1]):
            block = vectors[:, columns] * signs.to(vectors.device, vectors.dtype)
            sketches.index_add_(1, buckets.to(vectors.device), block)
        return sketches

    def _blocks(self, length: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        words = np.random.Philox(key=self.seed)
        for start in range(0, length, COORDINATES_AT_ONCE):
            columns = slice(start, min(length, start + COORDINATES_AT_ONCE))
            raw = words.random_raw(columns.stop - columns.start)
            # The upper 32 bits choose the bucket (biased by less than size/2³²), the lowest the sign.
            buckets = ((raw >> np.uint64(32)) * np.uint64(self.size)) >> np.uint64(32)
            signs = 1 - 2 * (raw & np.uint64(1)).astype(np.int8)
            yield columns, torch.from_numpy(buckets.astype(np.int64)), torch.from_numpy(signs)
