"""The app's model, its generators and its settings are after training what they were before."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from device_sdk.trainers import (
    InvalidSettings,
    ModelMismatch,
    StreamOfWords,
    TorchTrainer,
    TrainingFailed,
    TrainingSettings,
    TrainingStopped,
)
from device_sdk.trainers.torch_generators import GeneratorsAside
from tests.device_sdk.trainers.torch_cases import Items, mlp, records, same, state_of, weights_of

SETTINGS = TrainingSettings(0.2, batch_size=8, epochs=2)


def trained(model, dataset=None, *, weights=None, settings=SETTINGS, loss=None, **options):
    trainer = TorchTrainer(
        model, loss or nn.CrossEntropyLoss(), dataset or records(), order=StreamOfWords(seed=2), **options
    )
    return trainer.train(weights or weights_of(model), settings).update


def farthest(one, other):
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def test_training_lowers_the_loss():
    model, (inputs, targets) = mlp(), records()
    update = trained(model, settings=TrainingSettings(0.2, batch_size=8, epochs=30))
    with torch.no_grad():
        before = nn.functional.cross_entropy(model(inputs), targets)
        for name, parameter in model.named_parameters():
            parameter.add_(torch.from_numpy(update[name]))
        assert nn.functional.cross_entropy(model(inputs), targets) < 0.7 * before


@pytest.mark.parametrize(
    "model", [mlp(), mlp(nn.BatchNorm1d(5)), mlp(nn.Dropout(0.5)).eval()], ids=["mlp", "batch norm", "dropout"]
)
def test_the_apps_model_does_not_change(model):
    model[0].weight.grad = None
    before = state_of(model)
    weights = {name: part + 1 for name, part in weights_of(model).items()}
    trained(model, weights=weights)
    assert same(before, state_of(model))


def test_a_trainer_that_trains_the_apps_own_model_is_caught(monkeypatch):
    monkeypatch.setattr("privacy.training.flat_model._copied", lambda model: model)
    model = mlp()
    before = state_of(model)
    trained(model)
    assert not same(before, state_of(model))


def test_training_starts_from_the_tasks_weights_and_not_from_the_apps():
    model, other = mlp(), mlp()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3)
    weights = weights_of(model)
    assert farthest(trained(model, weights=weights), trained(other, weights=weights)) == 0


def test_frozen_parameters_are_the_apps_and_stay():
    model = mlp()
    model[0].requires_grad_(False)
    update = trained(model)
    assert set(update) == {"2.weight", "2.bias"}


def test_buffers_start_every_batch_as_the_app_has_them():
    seen = []

    class Watched(nn.BatchNorm1d):
        def forward(self, values):
            assert self.running_mean is not None
            seen.append(self.running_mean.clone())
            return super().forward(values)

    model = mlp(Watched(5))
    trained(model)
    assert len(seen) == 10
    assert all(torch.equal(mean, torch.zeros(5)) for mean in seen)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
@pytest.mark.parametrize("form", ["tensors", "arrays", "tensor dataset", "items"])
def test_records_may_come_in_any_usual_form(form, device):
    inputs, targets = records()
    dataset = {
        "tensors": (inputs, targets),
        "arrays": (inputs.numpy(), targets.numpy()),
        "tensor dataset": TensorDataset(inputs, targets),
        "items": Items(inputs, targets),
    }[form]
    assert farthest(trained(mlp(), dataset, device=device), trained(mlp())) < 1e-7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_update():
    assert farthest(trained(mlp(), device="cuda"), trained(mlp())) < 1e-5


def test_a_loss_may_be_given_record_by_record():
    by_records = trained(mlp(), loss=nn.CrossEntropyLoss(reduction="none"))
    assert farthest(by_records, trained(mlp())) < 1e-7


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_the_surroundings_of_a_call_do_not_matter(surroundings):
    model, dataset = mlp(), records()
    with surroundings():
        update = trained(model, dataset)
    assert farthest(update, trained(model, dataset)) < 1e-7


class DrawsByItself(nn.Module):
    def forward(self, values):
        return nn.functional.dropout(values, 0.5)


def drawn_after(model):
    torch.manual_seed(5)
    trained(model)
    return torch.rand(3)


@pytest.mark.parametrize(
    "layer", [nn.Identity(), nn.Dropout(0.5), DrawsByItself()], ids=["plain", "dropout", "drawing"]
)
def test_the_apps_generator_is_left_where_it_was(layer):
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    assert torch.equal(drawn_after(mlp(layer)), undisturbed)


def test_a_generator_that_moved_on_is_caught(monkeypatch):
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    monkeypatch.setattr("device_sdk.trainers.torch_generators._set", lambda states, device: None)
    assert not torch.equal(drawn_after(mlp(DrawsByItself())), undisturbed)


def test_dropout_does_not_listen_to_torchs_seed():
    updates = []
    for _ in range(2):
        torch.manual_seed(5)
        updates.append(trained(mlp(nn.Dropout(0.5))))
    assert farthest(*updates) > 1e-3


def test_what_a_model_draws_differs_from_round_to_round():
    aside, drawn = GeneratorsAside(), []
    for _ in range(2):
        torch.manual_seed(5)
        with aside.while_training_on(torch.device("cpu")):
            drawn.append(torch.rand(3))
    assert not torch.equal(*drawn)


def test_training_stops_between_batches_and_leaves_everything_as_it_was():
    model = mlp(DrawsByItself())
    calls: list[None] = []
    before = state_of(model)
    torch.manual_seed(5)
    generator = torch.get_rng_state()

    def stop_at_the_third():
        calls.append(None)
        if len(calls) == 3:
            raise TrainingStopped

    with pytest.raises(TrainingStopped):
        TorchTrainer(model, nn.CrossEntropyLoss(), records()).train(weights_of(model), SETTINGS, stop_at_the_third)
    assert len(calls) == 3
    assert same(before, state_of(model))
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_failure_of_the_apps_code_tells_no_data():
    inputs, targets = records()
    targets[7] = 424242
    with pytest.raises(TrainingFailed, match="raised IndexError on a batch") as failure:
        trained(mlp(), (inputs, targets))
    assert "424242" not in str(failure.value)


@pytest.mark.parametrize("scale", [1.0, math.inf])
def test_a_model_of_double_precision_gives_single(scale):
    weights = {name: part.astype(np.float64) for name, part in weights_of(mlp()).items()}
    inputs, targets = records()
    update = trained(mlp().double(), (inputs.double() * scale, targets), weights=weights)
    assert {part.dtype for part in update.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(part).all() for part in update.values()) == math.isfinite(scale)


@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"0.weight": np.zeros((5, 6), dtype=np.float32)},
        {name: part.T for name, part in weights_of(mlp()).items()},
        {**weights_of(mlp()), "extra": np.zeros(1, dtype=np.float32)},
    ],
)
def test_a_task_for_another_model_is_refused(weights):
    trainer = TorchTrainer(mlp(), nn.CrossEntropyLoss(), records())
    trainer.check_model({name: part.shape for name, part in weights_of(mlp()).items()})
    shapes = {name: part.shape for name, part in weights.items()}
    for call in (
        lambda: trainer.check_model(shapes),
        lambda: trainer.train(weights, SETTINGS),
        lambda: trainer.training_data(weights),
    ):
        with pytest.raises(ModelMismatch, match="nothing was trained"):
            call()


def test_a_model_of_mixed_precision_is_refused_with_the_fix():
    model = mlp()
    model[0].double()
    with pytest.raises(ModelMismatch, match=r"model\.float"):
        trained(model, weights=weights_of(mlp()))


class Endless(IterableDataset[object]):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("dataset", [Endless(), (torch.zeros(3, 2), torch.zeros(2)), object()])
def test_records_of_another_form_are_refused_at_once(dataset):
    with pytest.raises(InvalidSettings, match="nothing was kept"):
        TorchTrainer(mlp(), nn.CrossEntropyLoss(), dataset)
