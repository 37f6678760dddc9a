"""What comes out of simulated training: the update of each device, or only a weighted sum of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Trained:
    """The outcome for devices, one row each."""

    devices: tuple[str, ...]
    positions: tuple[int, ...]
    """Where each device stood in what the caller asked for."""
    updates: Tensor
    """[n, size]: the model after local training minus the one before."""
    steps: Tensor
    """[n] int64."""
    halves: Tensor | None = None
    """[2, n, size], if asked for: what the batches of either half contributed; they add up to `updates`."""
    start_losses: Tensor | None = None
    """[n], if asked for: mean loss of the starting model over the device's records; NaN without records."""


@dataclass(frozen=True)
class TrainedSum:
    """The outcome for devices whose updates nobody wants to see one by one."""

    positions: tuple[int, ...]
    """Where each device stood in what the caller asked for."""
    total: Tensor
    """[size]: the sum of share times update, over those devices whose updates are finite."""
    finite: tuple[bool, ...]
    start_losses: Tensor | None = None
    """[n], as in `Trained`."""
