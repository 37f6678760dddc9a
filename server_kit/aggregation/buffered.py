"""FedBuff: a buffer of updates, each discounted for its staleness (Nguyen et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from server_kit.aggregation.streaming import add_to, moved

if TYPE_CHECKING:
    from server_kit.interfaces import Memory, Updates


@dataclass(frozen=True)
class FedBuff:
    """w ← w + η·(1/K)·Σ (1+τᵢ)^−½·Δᵢ over the K updates of the buffer; optional server momentum.

    Deltas are applied, not stale weights, and the sum is divided by K once.
    """

    of_a_mean: ClassVar[bool] = True
    learning_rate: float = 1.0
    momentum: float = 0.0
    most_staleness: int | None = None

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        total: torch.Tensor | None = None
        buffered = 0
        for update in updates:
            buffered += 1
            if not (discount := self.discount(update.staleness)):
                continue
            if total is None:
                total = torch.zeros_like(update.delta, dtype=torch.float64)
            add_to(total, update.delta, discount)
            del update
        if total is None:
            return model.clone()
        step = total / buffered
        if self.momentum:
            step = memory["velocity"] = self.momentum * memory.get("velocity", torch.zeros_like(step)) + step
        return moved(model, self.learning_rate * step)

    def discount(self, staleness: int) -> float:
        """How much an update counts that is so late; 0 for one that is too late."""
        too_late = self.most_staleness is not None and staleness > self.most_staleness
        return 0.0 if too_late else float((1 + staleness) ** -0.5)
