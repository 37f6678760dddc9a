"""Any torch module trains as it would alone: at once where torch can, else one device after the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from server_kit.errors import InvalidSetting
from server_kit.simulation.training import LocalTask, ModuleSpec, Trainer
from server_kit.simulation.training import module_kernel as kernel_module
from tests.server_kit.simulation.training.fleet import SEED, SPECS, alone, fleet


class Residual(nn.Module):
    """Not a stack of layers: no spec could describe it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(98, 9), nn.Linear(9, 4)
        self.scale = nn.Parameter(torch.ones(9))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.last(hidden + self.scale * hidden.square())


def made(module: type[nn.Module] | nn.Module) -> ModuleSpec:
    torch.manual_seed(3)
    return ModuleSpec(module() if isinstance(module, type) else module, (98,))


def with_batch_norm() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(98, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


TASKS = {
    "plain": LocalTask(0.1, batch_size=4, epochs=2),
    "momentum, proximal": LocalTask(0.1, batch_size=4, momentum=0.5, proximal=0.3),
    "clipped": LocalTask(0.1, batch_size=4, clip_norm=0.3),
}


def trained(spec, data, devices, task):
    with Trainer(spec, workers=2, devices_per_chunk=3) as trainer:
        return trainer.train(spec.initial(), data, devices, task, seed=SEED, round_number=3)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_module_trains_each_device_as_it_would_alone(task, at_once, monkeypatch):
    if not at_once:

        def refuse(*_: object, **__: object) -> object:
            raise RuntimeError

        monkeypatch.setattr(kernel_module, "vmap", refuse)
    spec = made(Residual)
    data = fleet(spec)
    result = trained(spec, data, list(data), task)
    for device, update in zip(data, result.updates, strict=True):
        expected, _ = alone(spec, data, device, task, spec.initial())
        torch.testing.assert_close(update, expected, rtol=1e-3, atol=2e-6)


def test_batch_normalisation_sees_only_records_that_are_there():
    spec = ModuleSpec(with_batch_norm(), (98,))
    data = fleet(spec)
    devices = ["d0", "d5", "d4"]  # batches of four, of three and of four records
    task = LocalTask(0.1, batch_size=4, steps=3)
    result = trained(spec, data, devices, task)
    for device, update in zip(devices, result.updates, strict=True):
        expected, _ = alone(spec, data, device, task, spec.initial())
        torch.testing.assert_close(update, expected, rtol=1e-3, atol=2e-6)


def test_batch_normalisation_has_no_gradient_of_a_single_record():
    spec = ModuleSpec(with_batch_norm(), (98,))
    with pytest.raises(InvalidSetting, match="group normalisation"):
        trained(spec, fleet(spec), ["d0"], LocalTask(0.1, clip_norm=1.0))


def test_a_loss_of_the_user_is_followed_and_must_tell_records_apart():
    torch.manual_seed(3)
    module = nn.Linear(98, 1)

    def squared(outputs, targets):
        return (outputs.squeeze(1) - targets).square()

    spec = ModuleSpec(module, (98,), squared)
    data = fleet(spec)
    task = LocalTask(0.01, batch_size=4)
    result = trained(spec, data, ["d0", "d3"], task)
    torch.testing.assert_close(
        result.updates[1], alone(spec, data, "d3", task, spec.initial())[0], rtol=1e-3, atol=2e-6
    )
    mean_only = ModuleSpec(module, (98,), lambda outputs, targets: squared(outputs, targets).mean())
    with pytest.raises(InvalidSetting, match="one value for each"):
        trained(mean_only, data, ["d0"], task)


def test_the_users_module_is_left_alone():
    spec = made(Residual)
    before = spec.initial().clone()
    trained(spec, fleet(spec), ["d0", "d1"], TASKS["plain"])
    assert torch.equal(spec.layout.read(spec.source), before)
    assert all(parameter.grad is None for parameter in spec.source.parameters())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_general_way_agrees_with_the_fast_one(name):
    spec = SPECS[name]
    data, task = fleet(spec), LocalTask(0.1, batch_size=4, epochs=2, clip_norm=0.5)
    general = ModuleSpec(spec.module(spec.initial(4)), spec.input_shape)
    with Trainer(spec, workers=1) as trainer:
        fast = trainer.train(spec.initial(4), data, list(data), task, seed=SEED, round_number=3)
    torch.testing.assert_close(trained(general, data, list(data), task).updates, fast.updates, rtol=1e-3, atol=2e-6)
