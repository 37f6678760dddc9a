"""q-FedAvg: devices with a higher loss weigh more (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from server_kit.aggregation.streaming import moved

if TYPE_CHECKING:
    from server_kit.interfaces import Memory, Updates

_LEAST_LOSS = 1e-10


@dataclass(frozen=True)
class QFedAvg:
    """w ← w − Σ Fᵢ^q·L(w−wᵢ) / Σ (q·Fᵢ^(q−1)·‖L(w−wᵢ)‖² + L·Fᵢ^q), with L = 1/η.

    Fᵢ is the loss of the model that was handed out, on device i's data, before it trained. A device that
    reported none counts with the mean of those that did.
    """

    reads_again: ClassVar[bool] = True
    q: float = 1.0
    learning_rate: float = 0.1

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        reported = [update.loss for update in updates if update.loss is not None]
        typical = sum(reported) / len(reported) if reported else 1.0
        lipschitz = 1 / self.learning_rate
        total: torch.Tensor | None = None
        scale = 0.0
        for update in updates:
            loss = (typical if update.loss is None else update.loss) + _LEAST_LOSS
            gradient = update.delta.to(torch.float64) * -lipschitz
            weighted = loss**self.q * gradient
            total = weighted if total is None else total.add_(weighted)
            scale += self.q * loss ** (self.q - 1) * float(gradient @ gradient) + lipschitz * loss**self.q
        return moved(model, None if total is None else total / -scale)
