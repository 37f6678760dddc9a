"""Sums over a stream of updates in constant memory: one running vector, whatever the number of devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from server_kit.interfaces import summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from server_kit.interfaces import Announced, Update, Updates

BLOCK = 1 << 20
"""So many numbers at a time where a step over all of them would need another vector."""


@dataclass(frozen=True)
class Held:
    """Updates that are in memory already, such as those of a small round or a single late one."""

    updates: Sequence[Update]

    def __len__(self) -> int:
        return len(self.updates)

    def __iter__(self) -> Iterator[Update]:
        return iter(self.updates)


def weighted_mean(updates: Updates, weight: Callable[[Announced], float]) -> torch.Tensor | None:
    """Σ wᵢ·Δᵢ / Σ wᵢ in float64; None where there is nothing to average.

    A masked update speaks only for the coordinates it trained: those are averaged among themselves.
    """
    added_up = summed(updates, weight)
    if added_up is not None:
        weights = sum(weight(each) for each in added_up.counted if each.is_finite)
        return added_up.total / weights if weights > 0 else None
    return _mean_of_each(updates, weight)


def _mean_of_each(updates: Updates, weight: Callable[[Announced], float]) -> torch.Tensor | None:
    total: torch.Tensor | None = None
    shares: torch.Tensor | float = 0.0
    for update in updates:
        share = weight(update)
        if total is None:
            total = torch.zeros_like(update.delta, dtype=torch.float64)
        if update.mask is None:
            add_to(total, update.delta, share)
            shares = shares + share
        else:
            kept = update.mask.to(torch.float64)
            total.add_(update.delta * kept, alpha=share)
            shares = kept * share + shares
        # Before the next is read: two of them would be one too many.
        del update
    if total is None:
        return None
    if isinstance(shares, float):
        return total.div_(shares) if shares > 0 else None
    # A coordinate that nobody trained stays where it is.
    return torch.where(shares > 0, total / shares.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def blocks_of(vector: torch.Tensor) -> Sequence[torch.Tensor]:
    """Views of a vector, `BLOCK` numbers at a time; a short one is left alone, since `split` takes a while."""
    return (vector,) if len(vector) <= BLOCK else torch.split(vector, BLOCK)


def add_to(total: torch.Tensor, delta: torch.Tensor, share: float) -> None:
    """Add to a sum of higher precision, block by block: torch would copy all of `delta` into that precision first."""
    for part, added in zip(blocks_of(total), blocks_of(delta), strict=True):
        part.add_(added, alpha=share)


def moved(model: torch.Tensor, step: torch.Tensor | None) -> torch.Tensor:
    """`model` moved by `step`, in the model's own precision; block by block, for the same reason."""
    if step is None:
        return model.clone()
    result = torch.empty_like(model)
    blocks = (blocks_of(each) for each in (result, model, step))
    for part, before, by in zip(*blocks, strict=True):
        part.copy_(before + by)
    return result
