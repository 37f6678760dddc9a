"""Local training of many simulated devices at once: the front of this package.

    with Trainer(Mlp()) as trainer:
        for chunk in trainer.train_in_chunks(model, data, chosen, task, seed=1, round_number=7):
            total += chunk.updates.sum(dim=0)

Memory does not grow with the number of devices: a chunk's tensors are used again for a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Required, Self, TypedDict, Unpack

import torch
from torch import Tensor

from server_kit.errors import InvalidSetting
from server_kit.local_task import LocalTask
from server_kit.simulation.training.bench import Bench, Spec
from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.evaluation import Evaluation, panels
from server_kit.simulation.training.hardware import Hardware, torch_device
from server_kit.simulation.training.planning import Group, plan, rows_at_once
from server_kit.simulation.training.results import Trained, TrainedSum
from server_kit.simulation.training.round_work import RoundWork
from server_kit.simulation.training.workers import Workers


class How(TypedDict, total=False):
    """What training takes beside models, records, devices and their task."""

    seed: Required[int]
    round_number: int | Sequence[int]
    """One for all devices, 0 if not given, or one for each."""
    start_of: Sequence[int] | None
    """For each device the number of the model that it starts from."""
    with_start_losses: bool


class Trainer:
    """Trains and evaluates one kind of model. Keeps threads and memory from round to round; `close` it.

    `workers` is the number of threads, by default as many as torch uses, or one for a graphics card;
    `devices_per_chunk` changes speed and memory, not results. `device` is where to compute (see `hardware`).
    """

    def __init__(
        self,
        spec: Spec,
        *,
        workers: int | None = None,
        devices_per_chunk: int | None = None,
        device: Hardware = "auto",
    ) -> None:
        self.spec = spec
        self._where = torch_device(device)
        own_workers = torch.get_num_threads() if self._where.type == "cpu" else 1
        self._count = own_workers if workers is None else workers
        if self._count < 1 or (devices_per_chunk is not None and devices_per_chunk < 1):
            raise InvalidSetting("a trainer needs a worker or more, and a chunk a device or more; nothing was started")
        self._largest = devices_per_chunk
        self._workers = Workers(lambda: Bench(spec, self._where), self._count, self._where)

    def train_in_chunks(
        self,
        starts: Tensor,
        data: DeviceData,
        devices: Sequence[str],
        task: LocalTask,
        **how: Unpack[How],
    ) -> Iterator[Trained]:
        """Train `devices` and hand them out a chunk at a time, in an order of the trainer's choice.

        They start from `starts`: one model [size], one for each device [n, size], or a few [m, size] of which
        `start_of` names one for each device. What a device does follows from its records, the task and
        (seed, device, round) alone. A chunk's tensors are overwritten once the next chunk is asked for.
        """
        work = self._work(starts, data, devices, task, **how)
        return self._workers.results([partial(work.train, group) for group in self._groups(work)])

    def sum_in_chunks(
        self,
        starts: Tensor,
        data: DeviceData,
        devices: Sequence[str],
        task: LocalTask,
        *,
        shares: Sequence[float],
        **how: Unpack[How],
    ) -> Iterator[TrainedSum]:
        """The same for whoever only wants the sum of `shares` times updates: a part of it for each chunk.

        Updates are not written down where that saves time, so that a sum is rounded otherwise than one of updates.
        """
        work = self._work(starts, data, devices, task, **how)
        return self._workers.results([partial(work.sum, group, shares) for group in self._groups(work)])

    def _work(
        self,
        starts: Tensor,
        data: DeviceData,
        devices: Sequence[str],
        task: LocalTask,
        *,
        seed: int,
        round_number: int | Sequence[int] = 0,
        start_of: Sequence[int] | None = None,
        with_start_losses: bool = False,
    ) -> RoundWork:
        starts, start_of = self._models(starts, start_of, len(devices), "starts")
        if task.mask is not None:
            self.spec.layout.check(task.mask)
        rounds = [round_number] * len(devices) if isinstance(round_number, int) else round_number
        return RoundWork(starts, data.on(self._where), devices, start_of, task, seed, rounds, with_start_losses)

    def _groups(self, work: RoundWork) -> list[Group]:
        chosen = (work.data, work.devices, work.grouped_starts, work.task)
        return plan(self.spec, *chosen, workers=self._count, largest=self._largest)

    def train(
        self,
        starts: Tensor,
        data: DeviceData,
        devices: Sequence[str],
        task: LocalTask,
        **how: Unpack[How],
    ) -> Trained:
        """The same, all at once and in the order of `devices`: as large as all updates together."""
        n, size = len(devices), self.spec.layout.size
        updates, steps = torch.zeros(n, size), torch.zeros(n, dtype=torch.int64)
        halves = torch.zeros(2, n, size) if task.halves else None
        losses = torch.zeros(n) if how.get("with_start_losses") else None
        for chunk in self.train_in_chunks(starts, data, devices, task, **how):
            places = list(chunk.positions)
            updates[places], steps[places] = chunk.updates, chunk.steps
            if halves is not None and chunk.halves is not None:
                halves[:, places] = chunk.halves
            if losses is not None and chunk.start_losses is not None:
                losses[places] = chunk.start_losses
        return Trained(tuple(devices), tuple(range(n)), updates, steps, halves, losses)

    def evaluate(
        self, models: Tensor, data: DeviceData, devices: Sequence[str], *, model_of: Sequence[int] | None = None
    ) -> Evaluation:
        """Loss and accuracy of each device with its model: `models` and `model_of` as in training."""
        models, model_of = self._models(models, model_of, len(devices), "models")
        loss, right = torch.zeros(2, len(devices), dtype=torch.float64)
        there = data.on(self._where)
        jobs = [panel.sums for panel in panels(models, model_of, there, devices, rows_at_once(self.spec))]
        for losses, rights in self._workers.results(jobs):
            loss += losses
            right += rights
        records = torch.tensor([data.count(device) for device in devices], dtype=torch.int64)
        return Evaluation(tuple(devices), (loss / records).float(), (right / records).float(), records)

    def _models(
        self, models: Tensor, chosen: Sequence[int] | None, devices: int, name: str
    ) -> tuple[Tensor, Sequence[int]]:
        """[m, size] and one number for each device."""
        models = models.detach().view(-1, models.shape[-1]).to(self._where, torch.float32)
        self.spec.layout.check(models)
        if chosen is None:
            chosen = [0] * devices if len(models) == 1 else range(len(models))
        if len(chosen) != devices or not all(0 <= number < len(models) for number in chosen):
            raise InvalidSetting(
                f"{name} has {len(models)} models for {devices} devices; give one, one for each, or say which device "
                "has which; nothing was computed"
            )
        return models, chosen

    def close(self) -> None:
        """Stop the threads."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def train(
    spec: Spec,
    starts: Tensor,
    data: DeviceData,
    devices: Sequence[str],
    task: LocalTask,
    *,
    seed: int,
    round_number: int = 0,
) -> Trained:
    """Train devices once; for many rounds, keep a `Trainer`."""
    with Trainer(spec) as trainer:
        return trainer.train(starts, data, devices, task, seed=seed, round_number=round_number)


def evaluate(
    spec: Spec, models: Tensor, data: DeviceData, devices: Sequence[str], *, model_of: Sequence[int] | None = None
) -> Evaluation:
    """Evaluate models once; for many rounds, keep a `Trainer`."""
    with Trainer(spec) as trainer:
        return trainer.evaluate(models, data, devices, model_of=model_of)
