"""Synthetic(α, β) of FedProx (Li et al. 2020): a linear model of its own for each device.

u_i ~ N(0, α), W_i and b_i ~ N(u_i, 1), B_i ~ N(0, β), v_i ~ N(B_i, 1), x ~ N(v_i, diag(j^-1.2)),
y = argmax(W_i x + b_i). As in the authors' generator, α and β are standard deviations and a device has
⌊lognormal(4, 2)⌋ + 50 samples. β makes inputs differ. Models differ at any α: u_i is the same for all classes
of a device, so it moves no argmax. We keep α because results are reported by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.chance import generator
from server_kit.simulation.datasets.dataset import Dataset


@dataclass(frozen=True)
class Synthetic:
    """Each device is a user; `most_samples` cuts the heavy tail, which otherwise grows with the fleet."""

    alpha: float = 1.0
    beta: float = 1.0
    num_devices: int = 100
    features: int = 60
    classes: int = 10
    most_samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < math.inf and 0 <= self.beta < math.inf):
            raise InvalidSetting(f"α and β must be at least 0, got {self.alpha} and {self.beta}; nothing was generated")
        counts = (self.num_devices, self.features, self.classes, 1 if self.most_samples is None else self.most_samples)
        if min(counts) < 1:
            raise InvalidSetting(
                f"devices, features, classes and samples start at 1, got {counts}; nothing was generated"
            )

    def load(self) -> Dataset:
        rng = generator(self.seed, "synthetic data")
        sizes = np.minimum(rng.lognormal(4, 2, self.num_devices), 2.0**40).astype(np.int64) + 50
        if self.most_samples is not None:
            sizes = np.minimum(sizes, self.most_samples)
        deviations = np.arange(1, self.features + 1) ** -0.6
        x = np.empty((sizes.sum(), self.features), dtype=np.float32)
        y = np.empty(len(x), dtype=np.int64)
        start = 0
        for size in sizes:
            shift, own = rng.normal(0, self.alpha), rng.normal(rng.normal(0, self.beta), 1, self.features)
            weights, bias = rng.normal(shift, 1, (self.features, self.classes)), rng.normal(shift, 1, self.classes)
            inputs = own + deviations * rng.standard_normal((size, self.features))
            x[start : start + size] = inputs
            y[start : start + size] = (inputs @ weights + bias).argmax(axis=1)
            start += size
        users = np.repeat(np.arange(self.num_devices), sizes)
        return Dataset(x, y, users=users, name=f"synthetic({self.alpha:g},{self.beta:g})", num_classes=self.classes)
