"""FedYogi: an adaptive server optimiser over the mean update (Reddi et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from server_kit.aggregation.streaming import weighted_mean

if TYPE_CHECKING:
    from server_kit.interfaces import Memory, Updates


@dataclass(frozen=True)
class FedYogi:
    """m ← β₁m + (1−β₁)Δ̄;  v ← v − (1−β₂)Δ̄² sign(v − Δ̄²);  w ← w + η·m/(√v + τ). No bias correction."""

    of_a_mean: ClassVar[bool] = True
    learning_rate: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    weighted: bool = False

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        mean = weighted_mean(updates, lambda update: update.weight if self.weighted else 1.0)
        if mean is None:
            return model.clone()
        squared = mean * mean
        first: torch.Tensor = memory.get("first", torch.zeros_like(mean))
        second: torch.Tensor = memory.get("second", torch.full_like(mean, self.tau**2))
        first = self.beta1 * first + (1 - self.beta1) * mean
        second = second - (1 - self.beta2) * squared * torch.sign(second - squared)
        memory["first"], memory["second"] = first, second
        return (model + self.learning_rate * first / (second.sqrt() + self.tau)).to(model.dtype)
