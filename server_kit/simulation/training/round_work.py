"""One round of local training, as work that can be done a chunk at a time by anybody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from server_kit.local_task import LocalTask
from server_kit.simulation.training.batches import stack
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.training.descent import descend
from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.evaluation import panels
from server_kit.simulation.training.kernel import Chunk, Kernel
from server_kit.simulation.training.noise import DeviceNoise, Noise
from server_kit.simulation.training.planning import Group, rows_at_once
from server_kit.simulation.training.results import Trained, TrainedSum
from server_kit.simulation.training.streams import Draw
from server_kit.simulation.training.targets import EachUpdate, SumOfUpdates, Target
from server_kit.simulation.training.workspace import Workspace

_FEW = 12  # devices with one start: to train them apart from others takes longer than to copy the start for each


@dataclass(frozen=True)
class RoundWork:
    """What a round asks for. `starts` is [m, size], `start_of` names one of them for each device.

    Starts and data lie where training takes place; what comes out lies in main memory.
    """

    starts: Tensor
    data: DeviceData
    devices: Sequence[str]
    start_of: Sequence[int]
    task: LocalTask
    seed: int
    rounds: Sequence[int]
    """Which of its rounds it is, for each device."""
    with_start_losses: bool

    @property
    def grouped_starts(self) -> Sequence[int]:
        """By which start to group devices: by none, if few have the same."""
        if _FEW * len(set(self.start_of)) > len(self.devices):
            return [0] * len(self.devices)
        return self.start_of

    def train(self, group: Group, bench: Bench, room: Workspace) -> Trained:
        """Train one chunk; what is returned may live in `room`."""
        n, size = len(group.positions), self.starts.shape[1]
        updates = room.take("updates", n, size)
        halves = room.take("halves", 2, n, size) if self.task.halves else None
        done = self._descend(group, bench, EachUpdate(updates, None if halves is None else halves[0]))
        done.kernel.finish(done.deviation, updates)
        if halves is not None and done.first_half is not None:
            done.kernel.finish(done.first_half, halves[0])
            torch.sub(updates, halves[0], out=halves[1])
        steps = [self.task.steps_for(self.data.count(device)) for device in done.chunk.devices]
        return Trained(
            done.chunk.devices,
            group.positions,
            updates.cpu(),
            torch.tensor(steps, device="cpu"),
            None if halves is None else halves.cpu(),
            done.losses,
        )

    def sum(self, group: Group, shares: Sequence[float], bench: Bench, room: Workspace) -> TrainedSum:
        """Train one chunk for the sum of `shares`, one for each device of the round, times updates."""
        own = torch.tensor([shares[position] for position in group.positions], device=self.starts.device)
        target = SumOfUpdates(room.zeros("sum", self.starts.shape[1]), own)
        done = self._descend(group, bench, target)
        done.kernel.finish_sum(done.deviation, target)
        if not math.isfinite(target.total.sum(dtype=torch.float64)):
            # Not all devices are finite, or nearly so: who is not shows when updates are written down.
            return _sum_of_finite(self.train(group, bench, room), own.cpu())
        return TrainedSum(group.positions, target.total.cpu(), (True,) * len(group.positions), done.losses)

    def _descend(self, group: Group, bench: Bench, target: Target) -> _Descended:
        chunk, draws = self._chunk(group)
        kernel = bench.kernel(row_space=group.row_space)
        noise = None
        if self.task.noise_multiplier:
            noise = Noise(tuple(DeviceNoise(draw.noise_key()) for draw in draws), bench.noise_scratch)
        weights, origin = kernel.begin(chunk, noise, target)
        losses = kernel.start_losses() if self.with_start_losses else None
        first_half = descend(kernel, chunk, (weights, origin), noise, bench.workspace)
        if self.with_start_losses and losses is None:
            losses = self._start_losses(chunk, bench)
        return _Descended(chunk, kernel, weights.sub_(origin), first_half, None if losses is None else losses.cpu())

    def _chunk(self, group: Group) -> tuple[Chunk, list[Draw]]:
        devices = [self.devices[position] for position in group.positions]
        rounds = [self.rounds[position] for position in group.positions]
        draws = [Draw(self.seed, device, number) for device, number in zip(devices, rounds, strict=True)]
        starts = [self.start_of[position] for position in group.positions]
        start = self.starts[starts[0] : starts[0] + 1] if len(set(starts)) == 1 else self.starts[starts]
        batches = stack(devices, draws, self.data, self.task)
        return Chunk(group.positions, tuple(devices), start, batches, self.data, self.task), draws

    def _start_losses(self, chunk: Chunk, bench: Bench) -> Tensor:
        losses = torch.zeros(len(chunk), dtype=torch.float64, device="cpu")
        numbers = range(len(chunk)) if len(chunk.start) > 1 else [0] * len(chunk)
        for panel in panels(chunk.start, numbers, self.data, chunk.devices, rows_at_once(bench.spec)):
            losses += panel.sums(bench)[0]
        counts = [self.data.count(device) for device in chunk.devices]
        return (losses / torch.tensor(counts, device="cpu")).float()


@dataclass(frozen=True)
class _Descended:
    """A chunk that has taken its steps; the kernel knows what they mean for the model."""

    chunk: Chunk
    kernel: Kernel
    deviation: Tensor
    first_half: Tensor | None
    losses: Tensor | None


def _sum_of_finite(trained: Trained, shares: Tensor) -> TrainedSum:
    finite = trained.updates.isfinite().all(dim=1)
    total = torch.zeros(trained.updates.shape[1], dtype=torch.float64, device="cpu")
    for place in finite.nonzero().flatten().tolist():
        total.add_(trained.updates[place], alpha=float(shares[place]))
    return TrainedSum(trained.positions, total, tuple(finite.tolist()), trained.start_losses)
