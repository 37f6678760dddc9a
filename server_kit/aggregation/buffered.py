"""FedBuff: a buffer of updates, each discounted for its staleness (Nguyen et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from server_kit.aggregation.streaming import add_to, moved

if TYPE_CHECKING:
    from server_kit.interfaces import Memory, Updates


@dataclass(frozen=True)
class FedBuff:
    """w ← w + η·(1/K)·Σ (1+τᵢ)^−½·Δᵢ over the K updates of the buffer; optional server momentum.

    Deltas are applied, not stale weights, and the sum is divided by K once.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    most_staleness: int | None = None

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        total: torch.Tensor | None = None
        buffered = 0
        for update in updates:
            buffered += 1
            if self.most_staleness is not None and update.staleness > self.most_staleness:
                continue
            if total is None:
                total = torch.zeros_like(update.delta, dtype=torch.float64)
            add_to(total, update.delta, (1 + update.staleness) ** -0.5)
            del update
        if total is None:
            return model.clone()
        step = total / buffered
        if self.momentum:
            step = memory["velocity"] = self.momentum * memory.get("velocity", torch.zeros_like(step)) + step
        return moved(model, self.learning_rate * step)
