"""What a device is asked to do with its data: the local objective, how long, in what steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from server_kit.errors import InvalidSetting


@dataclass(frozen=True, eq=False)
class LocalTask:
    """Local training by SGD; every device does exactly what it would do alone.

    An epoch shuffles the records and cuts them into batches, the last one maybe shorter. A step follows the
    mean gradient of its batch, plus `proximal`·(w − start) (FedProx), through `momentum`.

    With `clip_norm` each record's gradient is clipped by itself, the sum gets Gaussian noise of standard
    deviation noise_multiplier·clip_norm and is divided by `batch_size`, whatever the batch really held. The
    noise is that of a simulation: it shows what DP-SGD costs in accuracy and protects nobody. `sampling`
    "poisson" lets each record join each step by its own coin, at rate batch_size/records.
    """

    learning_rate: float
    batch_size: int = 10
    epochs: int = 1
    steps: int | None = None
    """Instead of whole epochs: stop after this many steps, starting another epoch when one is used up."""
    momentum: float = 0.0
    proximal: float = 0.0
    mask: Tensor | None = None
    """Bool [size]: only these coordinates train (CASA+). Records are clipped before the mask is applied."""
    halves: bool = False
    """Also tell what even and odd batches contributed; no record is ever in both (see `batches`)."""
    clip_norm: float | None = None
    noise_multiplier: float = 0.0
    sampling: Literal["shuffled", "poisson"] = "shuffled"

    def __post_init__(self) -> None:
        _require(math.isfinite(self.learning_rate), f"learning_rate must be a number, got {self.learning_rate}")
        for name in ("batch_size", "epochs"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        _require(self.steps is None or self.steps >= 0, f"steps cannot be negative, got {self.steps}")
        _require(0 <= self.momentum < 1, f"momentum must be at least 0 and below 1, got {self.momentum}")
        _require(0 <= self.proximal < math.inf, f"proximal must be at least 0, got {self.proximal}")
        _require(self.mask is None or self.mask.dtype == torch.bool, "mask must hold booleans, one for each parameter")
        self._check_privacy()

    def _check_privacy(self) -> None:
        _require(
            self.sampling in {"shuffled", "poisson"}, f"sampling is 'shuffled' or 'poisson', not {self.sampling!r}"
        )
        _require(0 <= self.noise_multiplier < math.inf, f"noise_multiplier must be ≥ 0, got {self.noise_multiplier}")
        if self.clip_norm is None:
            _require(self.noise_multiplier == 0, "noise without a clip_norm has no scale; set clip_norm")
            _require(self.sampling == "shuffled", "Poisson batches are meant for DP-SGD; set clip_norm")
        else:
            _require(0 < self.clip_norm < math.inf, f"clip_norm must be above 0, got {self.clip_norm}")
            _require(not (self.halves and self.sampling == "poisson"), "halves need sampling='shuffled'")

    @property
    def is_private(self) -> bool:
        """Whether records are clipped one by one."""
        return self.clip_norm is not None

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on a step's gradient, after division by `batch_size`."""
        return self.noise_multiplier * (self.clip_norm or 0.0) / self.batch_size

    @property
    def is_plain(self) -> bool:
        """Whether a step is nothing but w ← w − η·(gradient, maybe clipped and noised)."""
        return not (self.momentum or self.proximal or self.halves or self.mask is not None)

    @property
    def is_one_pass(self) -> bool:
        """Whether a device meets about as many records as it has, one epoch however batches are drawn."""
        return self.epochs == 1 and self.steps is None

    def steps_for(self, records: int) -> int:
        """How many steps a device with so many records takes."""
        if records == 0:
            return 0
        return self.epochs * math.ceil(records / self.batch_size) if self.steps is None else self.steps


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSetting(f"{message}; nothing was trained")
