"""One update at a time: mixing late models into a model that has moved on (FedAsync, CASA)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from server_kit.interfaces import Memory, Update, Updates


def mixed(model: torch.Tensor, update: Update, alpha: float) -> torch.Tensor:
    """(1−α)·w + α·wᵢ, under the update's mask where it has one. wᵢ is the device's own model, base + Δ."""
    base = model if update.base is None else update.base
    mixture = torch.lerp(model.double(), base.double() + update.delta.double(), alpha).to(model.dtype)
    return mixture if update.mask is None else torch.where(update.mask.bool(), mixture, model)


@dataclass(frozen=True)
class FedAsync:
    """w ← (1−αₜ)w + αₜwᵢ, αₜ = α·s(τ) for staleness τ (Xie et al. 2019).

    s is 1 (constant), (τ+1)^−a (polynomial), or 1 up to τ = b and 1/(a(τ−b)+1) beyond (hinge).
    """

    alpha: float = 0.6
    decay: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: float = 0.5
    b: float = 4.0

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        for update in updates:
            model = mixed(model, update, min(1.0, self.alpha * self.freshness(update.staleness)))
        return model.clone()

    def freshness(self, staleness: int) -> float:
        if self.decay == "constant":
            return 1.0
        if self.decay == "polynomial":
            return float((staleness + 1) ** -self.a)
        return 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)


@dataclass(frozen=True)
class CasaDecay:
    """CASA's bi-level decay, as far as its slides fix it; the rest is our reconstruction.

    The cohort decays: α_c = α₀·Ω(t)/max(1, ln|C|), with Ω(t) = max(Ω_min, (1 + t/n₀)^−½) and t the merges since
    the cohort was created. The device decays: α_c up to the cohort's mean staleness, α_c/√τ beyond. A singleton
    has ln 1 = 0, hence the floor of the divisor; without the floor of Ω the split test would end up always true.
    """

    alpha: float = 0.6
    omega_floor: float = 0.1
    population: int | None = None
    """n₀: the devices there are; None for those that the server knows of."""

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        for update in updates:
            model = mixed(model, update, self.device_alpha(update.staleness, memory))
            memory["merges"] = memory.get("merges", 0) + 1
            window = max(1, memory.get("members", 1))
            memory["staleness"] = [*memory.get("staleness", []), update.staleness][-window:]
        return model.clone()

    def inherited(self, memory: Memory) -> Memory:
        """What a child takes over at a split: its clock begins anew."""
        return {name: value for name, value in memory.items() if name == "population"}

    def cohort_alpha(self, memory: Memory) -> float:
        merges: int = memory.get("merges", 0)
        devices: int = self.population or memory.get("population", 1)
        omega = max(self.omega_floor, 1 / math.sqrt(1 + merges / devices))
        divisor = max(1.0, math.log(max(1, memory.get("members", 1))))
        return min(1.0, max(0.0, self.alpha * omega / divisor))

    def device_alpha(self, staleness: int, memory: Memory) -> float:
        alpha = self.cohort_alpha(memory)
        seen = memory.get("staleness", [])
        usual = sum(seen) / len(seen) if seen else 0.0
        return alpha if staleness <= usual or staleness == 0 else alpha / math.sqrt(staleness)

    def sparse_rate(self, staleness: int, memory: Memory, most: float = 0.5) -> float:
        """CASA+: the share of weights a device leaves out; grows with staleness, cohort size and time."""
        return min(most, max(0.0, most * (1 - self.device_alpha(staleness, memory) / self.alpha)))
