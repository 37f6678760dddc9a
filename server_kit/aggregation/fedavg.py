"""FedAvg: the mean of the updates (McMahan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from server_kit.aggregation.streaming import moved, weighted_mean

if TYPE_CHECKING:
    import torch

    from server_kit.interfaces import Memory, Updates


@dataclass(frozen=True)
class FedAvg:
    """w ← w + Σ nᵢΔᵢ/Σ nᵢ, or the plain mean.

    Sample counts are private, and weights by them would make one device's sensitivity unbounded, so noised
    updates arrive with weight 1 and `weighted` changes nothing for them.
    """

    of_a_mean: ClassVar[bool] = True
    weighted: bool = True

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        return moved(model, weighted_mean(updates, lambda update: update.weight if self.weighted else 1.0))
