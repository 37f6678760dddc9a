"""How private steps are taken, with torch or without."""

from __future__ import annotations

from dataclasses import dataclass

STEP_BITS = 24
"""A clip norm is 2**24 grid steps; its square, 2**48, leaves room for sums below 2**53."""


@dataclass(frozen=True)
class StepRule:
    """Stochastic gradient descent: what is made of the noised sums."""

    steps: int
    expected_batch_size: float
    learning_rate: float
    momentum: float = 0.0
    proximal: float = 0.0
    """μ of FedProx: pulls towards the weights that the training started from."""
