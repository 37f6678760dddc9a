"""Training in private steps: secret batch, clipped sum, noise, step; a fixed number of times.

What a step does never depends on how many records its batch held: the sum is divided by the batch size
that was declared, an empty batch is noised and steps like any other, and large ones are worked off in
parts of a fixed number of rows that are added up before the noise. The parameters are all that steps hand on to
each other, and all of them are noised; momentum and the proximal term work on what is noised already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from privacy.training.fixed_rows import in_rows, without_those_that_raise
from privacy.training.whole_gradients import grid_step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.training.flat_model import FlatModel
    from privacy.training.per_sample_clipping import ClippedBatch, PerSampleClipper
    from privacy.training.records import Records
    from privacy.training.step_rule import StepRule


class Batches(Protocol):
    """Chooses records, as `PoissonBatches` does."""

    def draw(self) -> NDArray[np.int64]:
        """The records of the next batch."""


class Noise(Protocol):
    """Noises a sum of clipped gradients, as `StepNoise` does."""

    def add_to(self, sums: NDArray[np.float64]) -> None:
        """`sums`, in whole grid steps, += noise."""


def nothing() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Work:
    """A model, the records it learns from, and how many rows it computes at once."""

    model: FlatModel
    clipper: PerSampleClipper
    records: Records
    rows: int
    raised: Callable[[], None] = nothing
    """Called where a record makes the model raise."""

    def clipped_sum(self, chosen: NDArray[np.int64]) -> Tensor:
        """The sum of the chosen records' clipped gradients in whole grid steps: a view that the next call overwrites.

        What one record adds does not depend on the others: it is computed among a fixed number of rows, and whole
        numbers add up exactly. So sums over parts of a batch, in any grouping, are this sum.
        """
        self.model.whole.zero_()
        for numbers in in_rows(chosen, self.rows):
            self._add(numbers)
        return self.model.whole

    def _add(self, numbers: NDArray[np.int64]) -> None:
        batch, present = self.records.rows(numbers)

        def clipped(places: Sequence[int]) -> ClippedBatch:
            # Everybody stays in the row they are in; whoever is left out for now is made up.
            there = torch.zeros(len(present), dtype=torch.bool)
            there[list(places)] = True
            rows = self.records.hidden(batch, there)
            return self.clipper.clipped(rows.to(self.model.weights.device), there)

        for _, found in without_those_that_raise(clipped, present.nonzero().flatten().tolist()):
            if found is None:
                self.raised()
            else:
                found.add_to(self.model.sums)


@torch.no_grad()
def train(work: Work, rule: StepRule, batches: Batches, noise: Noise) -> Tensor:
    """Take all steps; returns trained minus initial weights as one vector."""
    model = work.model
    step = grid_step(work.clipper.clip_norm)
    start = model.weights.clone()
    velocity = torch.zeros_like(start) if rule.momentum else None
    for _ in range(rule.steps):
        sums = work.clipped_sum(batches.draw()).cpu().numpy()
        noise.add_to(sums)
        # From here on everything is noised, and floats of any kind will do.
        gradient = torch.from_numpy(sums).mul_(step).to(start.device, start.dtype)
        if rule.proximal:
            gradient.add_(model.weights - start, alpha=rule.proximal * rule.expected_batch_size)
        direction = gradient if velocity is None else velocity.mul_(rule.momentum).add_(gradient)
        model.weights.add_(direction, alpha=-rule.learning_rate / rule.expected_batch_size)
    return model.weights - start
