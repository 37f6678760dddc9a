"""How a model does on a device: the same without torch, with it, and simulated; nothing of the app is changed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.ballot import Ballot
from device_sdk.trainers import (
    Evaluation,
    Evaluator,
    ModelMismatch,
    NumpyTrainer,
    RecordEvaluator,
    TorchTrainer,
    TrainingStopped,
    torch_evaluation,
)
from device_sdk.trainers import dense_network as dense
from device_sdk.trainers import numpy_trainer as numpy_training
from server_kit.simulation.population import Samples
from server_kit.simulation.training import evaluate
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.voting import votes
from tests.device_sdk.trainers import cases, torch_cases
from tests.device_sdk.trainers.cases import SPECS, fleet

KINDS: dict[str, Any] = {"numpy": cases.numpy_trainer, "torch": cases.torch_trainer}
COMBINATIONS = [
    (kind, spec)
    for kind in KINDS
    for spec in ("logistic", "mlp", "deep mlp", "cnn")
    if (kind, spec) != ("numpy", "cnn")
]
DEVICES = ("d0", "d1", "d2", "d3")


def simulated(spec):
    found = evaluate(spec, spec.initial(1) * 5, fleet(spec), DEVICES)
    return list(zip(found.losses.tolist(), found.accuracies.tolist(), strict=True))


def evaluated(kind, spec):
    weights, data = cases.named(spec, spec.initial(1) * 5), fleet(spec)
    found = [KINDS[kind](spec, data, device).evaluate(weights) for device in DEVICES]
    return [(evaluation.loss, evaluation.correct_share) for evaluation in found]


@pytest.mark.parametrize(("kind", "spec_name"), COMBINATIONS)
def test_a_device_finds_what_the_simulator_finds(kind, spec_name):
    spec = SPECS[spec_name]
    assert np.array(evaluated(kind, spec)) == pytest.approx(np.array(simulated(spec)), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_are_looked_at_in_parts_count_alike(kind, monkeypatch):
    whole = evaluated(kind, SPECS["mlp"])
    for module in (numpy_training, torch_evaluation):
        monkeypatch.setattr(module, "_EVALUATED_AT_ONCE", 4)
    assert np.array(evaluated(kind, SPECS["mlp"])) == pytest.approx(np.array(whole))


def test_an_evaluation_that_forgets_the_bias_is_caught(monkeypatch):
    honest = dense.DenseNetwork.logits

    def without_bias(self, tensors, inputs):
        return honest(self, {name: part for name, part in tensors.items() if name.endswith("weight")}, inputs)

    monkeypatch.setattr(dense.DenseNetwork, "logits", without_bias)
    spec = SPECS["mlp"]
    shifted = spec.initial(1) * 5 + 0.5
    ours = cases.numpy_trainer(spec, fleet(spec), "d0").evaluate(cases.named(spec, shifted))
    theirs = evaluate(spec, shifted, fleet(spec), ("d0",))
    assert abs(ours.loss - float(theirs.losses[0])) > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_without_records_nothing_is_right_and_the_loss_has_no_bound(kind):
    spec = SPECS["logistic"]
    found = KINDS[kind](spec, fleet(spec), "d4").evaluate(cases.named(spec, spec.initial(1)))
    assert found == Evaluation(math.inf, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_trainers_evaluate_and_stop_between_batches(kind):
    spec = SPECS["logistic"]
    trainer = KINDS[kind](spec, fleet(spec), "d0")
    assert isinstance(trainer, Evaluator)

    def stop():
        raise TrainingStopped("enough")

    with pytest.raises(TrainingStopped):
        trainer.evaluate(cases.named(spec, spec.initial(1)), stop)


def test_a_label_that_the_model_does_not_know_is_wrong_and_costs_nothing():
    weights = {"dense1.weight": np.zeros((3, 2), np.float32)}
    inputs = np.ones((4, 2), np.float32)
    found = NumpyTrainer(inputs, np.array([0, 0, -1, 7])).evaluate(weights)
    assert found.correct_share == 0.5
    assert found.loss == pytest.approx(math.log(3) / 2)


def test_a_model_that_has_run_off_has_no_finite_loss():
    weights = {"dense1.weight": np.full((3, 2), np.inf, np.float32)}
    found = NumpyTrainer(np.ones((4, 2), np.float32), np.zeros(4, int)).evaluate(weights)
    assert not math.isfinite(found.loss)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_another_shape_is_refused(kind):
    spec = SPECS["logistic"]
    weights = cases.named(SPECS["cnn"], SPECS["cnn"].initial(1))
    with pytest.raises(ModelMismatch):
        KINDS[kind](spec, fleet(spec), "d0").evaluate(weights)


def losses_of(kind, spec, device, number=1):
    return KINDS[kind](spec, fleet(spec), device).record_losses(cases.named(spec, spec.initial(number) * 5))


@pytest.mark.parametrize(("kind", "spec_name"), COMBINATIONS)
def test_the_losses_of_single_records_have_the_mean_that_is_told(kind, spec_name):
    spec = SPECS[spec_name]
    for device, (loss, _) in zip(DEVICES, evaluated(kind, spec), strict=True):
        assert float(losses_of(kind, spec, device).mean(dtype=np.float64)) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("kind", "spec_name"), COMBINATIONS)
def test_records_of_a_device_vote_as_the_simulator_says(kind, spec_name):
    spec, data = SPECS[spec_name], fleet(SPECS[spec_name])
    models = torch.stack([spec.initial(number) * 5 for number in (1, 2, 3)])
    for device, (start, size) in zip(DEVICES, itertools.pairwise(np.cumsum((0, *cases.SIZES)).tolist()), strict=False):
        ballot = Ballot(size - start)
        for choice, number in enumerate((1, 2, 3)):
            ballot.cast(choice, losses_of(kind, spec, device, number))
        records = Samples(data.x[start:size].numpy(), data.y[start:size].numpy())
        assert ballot.votes == votes(Bench(spec), models, records)


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_without_records_has_no_losses(kind):
    assert losses_of(kind, SPECS["logistic"], "d4").shape == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_trainers_look_at_records_and_stop_between_batches(kind):
    spec = SPECS["logistic"]
    trainer = KINDS[kind](spec, fleet(spec), "d0")
    assert isinstance(trainer, RecordEvaluator)

    def stop():
        raise TrainingStopped("enough")

    with pytest.raises(TrainingStopped):
        trainer.record_losses(cases.named(spec, spec.initial(1)), stop)


class _ComparesRecords(nn.Module):
    """Takes from each record the mean of all."""

    def __init__(self, features):
        super().__init__()
        self.dense = nn.Linear(features, 3)

    def forward(self, inputs):
        return self.dense(inputs - inputs.mean(dim=0))


def test_a_model_whose_records_have_no_loss_of_their_own_is_refused():
    inputs, targets = torch_cases.records()
    model = _ComparesRecords(inputs.shape[1])
    weights = torch_cases.weights_of(model)
    trainer = TorchTrainer(model, nn.CrossEntropyLoss(), (inputs, targets))
    trainer.evaluate(weights)  # as a whole it may be looked at
    with pytest.raises(ModelMismatch, match="no record has a vote of its own"):
        trainer.record_losses(weights)


def test_a_loss_that_is_told_for_a_batch_only_is_refused():
    inputs, targets = torch_cases.records()
    model = torch_cases.mlp()
    of_a_batch = TorchTrainer(model, lambda outputs, targets: outputs.mean(), (inputs, targets))
    with pytest.raises(ModelMismatch, match="one value for a whole batch"):
        of_a_batch.record_losses(torch_cases.weights_of(model))


def test_the_apps_model_and_generators_stay_as_they_are():
    model = torch_cases.mlp(nn.BatchNorm1d(5, affine=False), nn.Dropout(0.5))
    before, generator = torch_cases.state_of(model), torch.get_rng_state()
    inputs, targets = torch_cases.records()
    trainer = TorchTrainer(model, nn.CrossEntropyLoss(), (inputs, targets))
    with torch.inference_mode():
        first = trainer.evaluate(torch_cases.weights_of(model))
    assert trainer.evaluate(torch_cases.weights_of(model)) == first  # in evaluation mode nothing is dropped
    assert torch_cases.same(before, torch_cases.state_of(model))
    assert torch.equal(generator, torch.get_rng_state())


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.MSELoss(reduction="none")])
def test_numbers_that_are_no_classes_have_a_loss_and_nothing_to_get_right(loss):
    inputs, _ = torch_cases.records()
    model = torch_cases.mlp()
    found = TorchTrainer(model, loss, (inputs, torch.zeros(len(inputs), 3))).evaluate(torch_cases.weights_of(model))
    assert found.loss == pytest.approx(float((model(inputs) ** 2).mean().detach()), rel=1e-5)
    assert found.correct_share == 0.0


def test_of_a_record_with_several_targets_the_share_is_right():
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, inputs):
            return inputs * self.scale

    outputs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]] * 2)  # record, class, place: classes 0 and 1
    targets = torch.tensor([[0, 1], [0, 0]])
    found = TorchTrainer(Pairs(), nn.CrossEntropyLoss(), (outputs, targets)).evaluate({"scale": np.ones(1, np.float32)})
    assert found.correct_share == 0.75
