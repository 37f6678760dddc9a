"""How private steps are taken, with torch or without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepRule:
    """Stochastic gradient descent: what is made of the noised sums."""

    steps: int
    expected_batch_size: float
    learning_rate: float
    momentum: float = 0.0
    proximal: float = 0.0
    """μ of FedProx: pulls towards the weights that the training started from."""
