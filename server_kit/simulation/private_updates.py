"""A simulated device's update, clipped and noised as a whole."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.simulation.training.noise import DeviceNoise, NoiseScratch

if TYPE_CHECKING:
    from server_kit.simulation.privacy_terms import SpendingPlan


def noised_as_a_whole(delta: torch.Tensor, plan: SpendingPlan, name: str) -> torch.Tensor:
    """At most `clip_norm` long, plus the noise of the plan; one that is not finite counts as zero."""
    norm = float(delta.double().norm())
    if not np.isfinite(norm):
        delta, norm = torch.zeros_like(delta), 0.0
    scale = min(1.0, plan.terms.clip_norm / norm) if norm > 0 else 1.0
    noise = np.empty(delta.numel(), dtype=np.float32)
    DeviceNoise(hashlib.sha256(f"simulated update:{name}".encode()).digest()).fill(
        noise, plan.deviation, NoiseScratch()
    )
    return delta * scale + torch.from_numpy(noise)
