"""Every kernel gives each device what it would have got alone, whatever the task asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from server_kit.simulation.training import Cnn, LocalTask, Trainer
from server_kit.simulation.training.network import clipped_shares
from tests.server_kit.simulation.training.fleet import SEED, SPECS, alone, by_kernel, fleet

TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three epochs": {"epochs": 3},
    "seven steps": {"steps": 7},
    "less than an epoch": {"steps": 2},
    "no step": {"steps": 0},
    "one batch": {"batch_size": 50, "epochs": 2},
    "single records": {"batch_size": 1},
    "proximal": {"proximal": 0.7, "epochs": 2},
    "momentum": {"momentum": 0.9, "epochs": 2},
    "proximal momentum": {"momentum": 0.5, "proximal": 0.3, "epochs": 2},
    "masked": {"mask": True, "momentum": 0.5, "epochs": 2},
    "halves": {"halves": True, "epochs": 3, "momentum": 0.5, "proximal": 0.2},
    "clipped": {"clip_norm": 0.6},
    "clipped, momentum": {"clip_norm": 0.6, "momentum": 0.5, "epochs": 2},
    "clipped, Poisson": {"clip_norm": 0.6, "sampling": "poisson"},
    "clipped, Poisson epochs": {"clip_norm": 0.6, "sampling": "poisson", "epochs": 2},
}
# A masked layer is not a sum of records, and without a step there is nothing to gain: never planned in row space.
NOT_IN_ROW_SPACE = {"masked", "no step"}
CASES = [(name, False, task) for name in SPECS for task in TASKS] + [
    (name, True, task)
    for name, spec in SPECS.items()
    for task in TASKS
    if not isinstance(spec, Cnn) and task not in NOT_IN_ROW_SPACE
]


def task_for(name: str, size: int) -> LocalTask:
    settings: dict[str, Any] = {"batch_size": 4, **TASKS[name]}
    if settings.get("mask"):
        settings["mask"] = torch.arange(size) % 3 > 0
    return LocalTask(0.1, **settings)


@pytest.mark.parametrize(("spec_name", "row_space", "task_name"), CASES)
def test_each_device_gets_what_it_would_get_alone(spec_name, row_space, task_name):
    spec = SPECS[spec_name]
    task = task_for(task_name, spec.layout.size)
    data = fleet(spec)
    devices = [device for device in data if data.count(device) or not row_space]
    trained = by_kernel(spec, data, devices, task, row_space=row_space)
    for device, update, steps in zip(trained.devices, trained.updates, trained.steps.tolist(), strict=True):
        expected, half = alone(spec, data, device, task)
        torch.testing.assert_close(update, expected, rtol=1e-3, atol=2e-6)
        assert steps == task.steps_for(data.count(device))
        if trained.halves is not None:
            first, second = trained.halves[:, trained.devices.index(device)]
            torch.testing.assert_close(first, half, rtol=1e-3, atol=2e-6)
            torch.testing.assert_close(first + second, update, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("row_space", [False, True])
@pytest.mark.parametrize("epochs", [1, 3])
def test_devices_may_start_from_models_of_their_own(row_space, epochs):
    spec = SPECS["mlp"]
    data, task = fleet(spec), LocalTask(0.1, batch_size=4, epochs=epochs)
    devices = [device for device in data if data.count(device)]
    starts = torch.stack([spec.initial(seed) for seed in range(len(devices))])
    trained = by_kernel(spec, data, devices, task, row_space=row_space, start=starts)
    for position, update in zip(trained.positions, trained.updates, strict=True):
        expected, _ = alone(spec, data, devices[position], task, starts[position])
        torch.testing.assert_close(update, expected, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("row_space", [False, True])
@pytest.mark.parametrize("settings", [{}, {"epochs": 3}, {"steps": 1}, {"clip_norm": 1.0}])
def test_the_start_loss_is_the_mean_loss_over_all_records_at_the_start(row_space, settings):
    spec = SPECS["mlp"]
    data, task = fleet(spec), LocalTask(0.1, batch_size=4, **settings)
    devices = [device for device in data if data.count(device)]
    trained = by_kernel(spec, data, devices, task, row_space=row_space)
    assert trained.start_losses is not None
    module = spec.module(spec.initial(1))
    for device, loss in zip(trained.devices, trained.start_losses, strict=True):
        rows = torch.from_numpy(data.rows(device, torch.arange(data.count(device)).numpy()))
        expected = torch.nn.functional.cross_entropy(module(data.x[rows].view(len(rows), -1)), data.y[rows])
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)


def test_the_trainer_returns_devices_in_the_order_asked_for():
    spec = SPECS["mlp"]
    data, task = fleet(spec), LocalTask(0.1, batch_size=4)
    devices = ["d4", "d0", "d8", "d7", "d6"]
    with Trainer(spec, workers=2, devices_per_chunk=2) as trainer:
        trained = trainer.train(spec.initial(1), data, devices, task, seed=SEED, round_number=3, with_start_losses=True)
    assert trained.devices == tuple(devices)
    assert trained.steps.tolist() == [1, 4, 0, 4, 1]
    assert trained.start_losses is not None
    assert trained.start_losses.isnan().tolist() == [False, False, True, False, False]
    for device, update in zip(devices, trained.updates, strict=True):
        torch.testing.assert_close(update, alone(spec, data, device, task)[0], rtol=1e-3, atol=2e-6)


def test_a_wrong_sign_of_the_proximal_term_is_caught():
    spec = SPECS["mlp"]
    data = fleet(spec)
    trained = by_kernel(spec, data, ["d0"], LocalTask(0.1, batch_size=4, epochs=2, proximal=0.0), row_space=False)
    drawn_back, _ = alone(spec, data, "d0", LocalTask(0.1, batch_size=4, epochs=2, proximal=0.7))
    pushed_away = 2 * trained.updates[0] - drawn_back
    assert drawn_back.norm() < trained.updates[0].norm() < pushed_away.norm()


def test_clipping_never_leaves_a_gradient_longer_than_the_bound_and_short_ones_alone():
    squares = torch.tensor([[0.0, 0.25, 4.0, 1e12]])
    shares = clipped_shares(squares, torch.ones(1, 4), clip_norm=1.0)
    assert (shares * squares.sqrt()).max() <= 1 + 1e-6
    assert shares[0, :2].tolist() == [1.0, 1.0]
