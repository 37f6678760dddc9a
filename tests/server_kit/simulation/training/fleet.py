"""A small fleet of unequal devices, and the slow obvious loop that every kernel must agree with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from server_kit.simulation.training import Cnn, DeviceData, LocalTask, LogisticRegression, Mlp, ModuleSpec, Trained
from server_kit.simulation.training.batches import device_batches
from server_kit.simulation.training.bench import Bench, Spec
from server_kit.simulation.training.planning import Group
from server_kit.simulation.training.round_work import RoundWork
from server_kit.simulation.training.streams import Draw
from server_kit.simulation.training.workspace import Workspace

SEED, ROUND = 5, 3
SIZES = (13, 13, 12, 9, 4, 3, 1, 14, 0)  # equal ones, a short last batch, fewer than a batch, one record, none
SPECS: dict[str, Spec] = {
    "logistic": LogisticRegression(features=98, classes=4),
    "mlp": Mlp(features=98, hidden=(8,), classes=4),
    "deep mlp": Mlp(features=98, hidden=(7, 6), classes=4),
    "cnn": Cnn(image=(2, 14, 14), channels=(3, 4), kernel=3, hidden=(6,), classes=4),
    "padded cnn": Cnn(image=(1, 8, 8), channels=(3, 2), kernel=3, padding=1, hidden=(5,), classes=4),
    "oddly padded cnn": Cnn(image=(1, 8, 10), channels=(2,), kernel=5, padding=2, hidden=(), classes=4),
}


def fleet(spec: Spec, sizes: tuple[int, ...] = SIZES) -> DeviceData:
    """Devices "d0", "d1", …; half of their inputs are zero, as in images, so that maxima tie as they do there."""
    numbers = np.random.default_rng(11)
    total = sum(sizes)
    x = torch.from_numpy(numbers.normal(size=(total, *spec.input_shape)).astype(np.float32)).clamp_min_(0)
    y = torch.from_numpy(numbers.integers(0, 4, size=total))
    ends = np.cumsum(sizes)
    return DeviceData(
        x, y, {f"d{i}": range(end - size, end) for i, (end, size) in enumerate(zip(ends.tolist(), sizes, strict=True))}
    )


def by_kernel(
    spec: Spec, data: DeviceData, devices: list[str], task: LocalTask, *, row_space: bool, start: Tensor | None = None
) -> Trained:
    """One chunk through one kernel, whatever the planning would have chosen."""
    work, order = one_chunk(spec, data, devices, task, start)
    return work.train(Group(order, row_space), Bench(spec), Workspace())


def one_chunk(
    spec: Spec, data: DeviceData, devices: list[str], task: LocalTask, start: Tensor | None = None
) -> tuple[RoundWork, tuple[int, ...]]:
    """The work of these devices, and the order in which they can be one chunk."""
    steps = {device: task.steps_for(data.count(device)) for device in devices}
    order = sorted(range(len(devices)), key=lambda i: -steps[devices[i]])
    start = spec.initial(1) if start is None else start
    starts, start_of = (start[None], [0] * len(devices)) if start.dim() == 1 else (start, range(len(devices)))
    rounds = [ROUND] * len(devices)
    return RoundWork(starts, data, devices, start_of, task, SEED, rounds, with_start_losses=True), tuple(order)


def alone(
    spec: Spec, data: DeviceData, device: str, task: LocalTask, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The update of one device and what its even batches contributed, by autograd, one record and step at a time."""
    start = spec.initial(1) if start is None else start
    module = spec.module(start).train()
    loss = (
        spec.loss
        if isinstance(spec, ModuleSpec)
        else lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none")
    )

    def gradient(weights: Tensor, rows: Tensor) -> Tensor:
        spec.layout.write(weights, module)
        module.zero_grad()
        loss(module(data.x[rows].view(-1, *spec.input_shape)), data.y[rows]).mean().backward()
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    weights, velocity = start.clone(), torch.zeros_like(start)
    half, half_velocity = torch.zeros_like(start), torch.zeros_like(start)
    per_epoch = max(1, -(-data.count(device) // task.batch_size))
    for step, numbers in enumerate(device_batches(data.count(device), task, Draw(SEED, device, ROUND))):
        rows = torch.from_numpy(data.rows(device, numbers[numbers >= 0]))
        if task.clip_norm is None:
            found = gradient(weights, rows)
        else:
            found = torch.zeros_like(start)
            for row in rows:
                own = gradient(weights, row[None])
                found += own * min(1.0, task.clip_norm / float(own.norm()))
            found /= task.batch_size
        if task.mask is not None:
            found = found * task.mask
        half_velocity = task.momentum * half_velocity + task.proximal * half
        if step % per_epoch % 2 == 0:
            half_velocity = half_velocity + found
        half = half - task.learning_rate * half_velocity
        velocity = task.momentum * velocity + found + task.proximal * (weights - start)
        weights = weights - task.learning_rate * velocity
    return weights - start, half
