"""Memory that a worker keeps from chunk to chunk: fresh pages from the system cost more than the arithmetic on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named scratch tensors, grown when needed and never shrunk. One for each thread."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor of that name in a new shape; what it holds is whatever was left there."""
        count = math.prod(shape)
        kept = self._kept.get((name, dtype))
        if kept is None or len(kept) < count:
            kept = self._kept[name, dtype] = torch.empty(count, dtype=dtype)
        return kept[:count].view(shape)

    def zeros(self, name: str, *shape: int) -> Tensor:
        """The same, filled with zeros."""
        return self.take(name, *shape).zero_()
