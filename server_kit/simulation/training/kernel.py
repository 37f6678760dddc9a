"""The common form of everything that can train: gradients of a chunk of devices, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from server_kit.local_task import LocalTask
from server_kit.simulation.training.batches import Batches
from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.targets import SumOfUpdates, Target


@dataclass(frozen=True)
class Chunk:
    """A few devices that train side by side; those with more steps come first."""

    positions: tuple[int, ...]
    """Where each device stood in what the caller asked for."""
    devices: tuple[str, ...]
    start: Tensor
    """[1, size] if all start from one model, else [n, size]."""
    batches: Batches
    data: DeviceData
    task: LocalTask

    def __len__(self) -> int:
        return len(self.devices)


class Kernel(Protocol):
    """Computes on some vector [n, ·] for each device: the model itself, or another form of it."""

    @property
    def noised_from(self) -> int:
        """The first coordinate that gets noise in each step; those before it are the kernel's own affair."""

    def begin(self, chunk: Chunk, noise: Noise | None, target: Target) -> tuple[Tensor, Tensor]:
        """Turn to a chunk. Returns the vectors [n, ·] to be trained, and a copy [1 or n, ·] that stays.

        `target` is where the outcome will go; the vectors may live there. `noise` is None if the task asks for none.
        """

    def accumulate(self, weights: Tensor, step: int, into: Tensor, beta: float, alpha: float) -> None:
        """`into` ← beta·`into` + alpha·(sum of the records' gradients at `weights`, by their weights).

        Concerns the first devices of the chunk, as many as `weights` has rows. `into` may be `weights`.
        """

    def start_losses(self) -> Tensor | None:
        """Mean loss [n] over all records of each device at the start, if the kernel knows it anyway."""

    def finish(self, deviation: Tensor, target: Tensor) -> None:
        """Write into `target` [n, size] what a `deviation` [n, ·] from the start means for the model."""

    def finish_sum(self, deviation: Tensor, target: SumOfUpdates) -> None:
        """Add to the sum what `finish` would write into rows."""
