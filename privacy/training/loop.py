"""Training in private steps: secret batch, clipped sum, noise, step; a fixed number of times.

What a step does never depends on how many records its batch held: the sum is divided by the batch size
that was declared, an empty batch is noised and steps like any other, and large ones are worked off in
parts that are added up before the noise. The parameters are all that steps hand on to each other, and all
of them are noised; momentum and the proximal term work on what is noised already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from privacy.training.per_sample_clipping import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.training.flat_model import FlatModel
    from privacy.training.per_sample_clipping import PerSampleClipper
    from privacy.training.step_rule import StepRule


class Batches(Protocol):
    """Chooses records, as `PoissonBatches` does."""

    def draw(self) -> NDArray[np.int64]:
        """The records of the next batch."""


class Noise(Protocol):
    """Noises a sum of clipped gradients, as `StepNoise` does."""

    def add_to(self, vector: Tensor) -> None:
        """`vector` += noise."""


@dataclass(frozen=True)
class Work:
    """A model, the records it learns from, and how many of them it takes at once."""

    model: FlatModel
    clipper: PerSampleClipper
    records: Batch
    micro_batch_size: int

    def add_clipped_sum(self, chosen: Tensor) -> None:
        """Add the chosen records' clipped gradients to the model's sum; one that makes the model raise adds nothing.

        The model has been tried on made-up records, so an error here comes from what a record contains, such
        as an index that does not exist. Halving the batch finds it.
        """
        if not len(chosen):
            return
        try:
            clipped = self.clipper.clipped(self.records.select(chosen).to(self.model.weights.device))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # what a model may raise is not ours to list
            if len(chosen) > 1:
                for half in torch.split(chosen, (len(chosen) + 1) // 2):
                    self.add_clipped_sum(half)
            return
        # Not inside `try`: a sum that failed half-way would be added twice.
        clipped.add_to(self.model.sums)


@torch.no_grad()
def train(work: Work, rule: StepRule, batches: Batches, noise: Noise) -> Tensor:
    """Take all steps; returns trained minus initial weights as one vector."""
    model = work.model
    start = model.weights.clone()
    velocity = torch.zeros_like(start) if rule.momentum else None
    for _ in range(rule.steps):
        chosen = torch.from_numpy(batches.draw())
        model.gradient.zero_()
        for part in torch.split(chosen, work.micro_batch_size):
            work.add_clipped_sum(part)
        noise.add_to(model.gradient)
        if rule.proximal:
            model.gradient.add_(model.weights - start, alpha=rule.proximal * rule.expected_batch_size)
        direction = model.gradient if velocity is None else velocity.mul_(rule.momentum).add_(model.gradient)
        model.weights.add_(direction, alpha=-rule.learning_rate / rule.expected_batch_size)
    return model.weights - start
