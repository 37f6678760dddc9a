"""Memory that a worker keeps from chunk to chunk: fresh pages from the system cost more than the arithmetic on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named scratch tensors, grown when needed and never shrunk. One for each thread."""

    def __init__(self, where: torch.device | None = None) -> None:
        self._where = where or torch.device("cpu")
        self._kept: dict[str, Tensor] = {}
        # The last view of each name: steps ask for the same shapes again and again, and a view is not free.
        self._views: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """The float32 tensor of that name in a shape; what it holds is whatever was left there."""
        view = self._views.get(name)
        if view is not None and view.shape == shape:
            return view
        count = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = torch.empty(count, device=self._where)
        view = self._views[name] = kept[:count].view(shape)
        return view

    def zeros(self, name: str, *shape: int) -> Tensor:
        """The same, filled with zeros."""
        return self.take(name, *shape).zero_()


def first(values: Tensor, count: int) -> Tensor:
    """The first `count` rows: `values` itself if there are no more."""
    return values if values.shape[0] == count else values[:count]  # the shape is known sooner than the length
