"""What comes out of simulated training."""

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
