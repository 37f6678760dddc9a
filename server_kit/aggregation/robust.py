"""Aggregation that a few dishonest devices cannot steer: medians, trimmed means, bounded norms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from server_kit.aggregation.streaming import moved
from server_kit.interfaces import Aggregator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from server_kit.interfaces import Memory, Update, Updates

_MOST_VALUES = 1 << 24  # of one block: devices x coordinates held at a time (64 MiB of float32)


@dataclass(frozen=True)
class CoordinateMedian:
    """Each coordinate moves by the median of what the devices say (Yin et al. 2018).

    Reads the updates once for each block of coordinates, so that memory stays bounded.
    """

    reads_again: ClassVar[bool] = True

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        return _by_block(model, updates, lambda block: block.quantile(0.5, dim=0))


@dataclass(frozen=True)
class TrimmedMean:
    """Each coordinate moves by the mean without the `share` largest and smallest values (Yin et al. 2018)."""

    reads_again: ClassVar[bool] = True
    share: float = 0.1

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        return _by_block(model, updates, self._trimmed)

    def _trimmed(self, block: torch.Tensor) -> torch.Tensor:
        cut = min(int(self.share * len(block)), (len(block) - 1) // 2)
        return block.sort(dim=0).values[cut : len(block) - cut].mean(dim=0)


@dataclass(frozen=True)
class NormBound:
    """No update longer than `bound` reaches the aggregator inside (Sun et al. 2019)."""

    inner: Aggregator
    bound: float

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        return self.inner.aggregate(model, _Bounded(updates, self.bound), memory)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the rule inside can do (CASA tells how far an arrival moves the model)."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@dataclass(frozen=True)
class _Bounded:
    updates: Updates
    bound: float

    def __len__(self) -> int:
        return len(self.updates)

    def __iter__(self) -> Iterator[Update]:
        for update in self.updates:
            norm = float(update.delta.double().norm())
            yield update if norm <= self.bound else replace(update, delta=update.delta * (self.bound / norm))


def _by_block(model: torch.Tensor, updates: Updates, combine: _Combine) -> torch.Tensor:
    if not len(updates):
        return model.clone()
    width = max(1, _MOST_VALUES // len(updates))
    step = torch.empty(len(model), dtype=torch.float64, device=model.device)
    for start in range(0, len(model), width):
        # Copies: a view would keep the whole update, and a stream may write over it.
        block = torch.stack([update.delta[start : start + width].clone() for update in updates])
        step[start : start + width] = combine(block.double())
    return moved(model, step)


if TYPE_CHECKING:
    from collections.abc import Callable

    _Combine = Callable[[torch.Tensor], torch.Tensor]
