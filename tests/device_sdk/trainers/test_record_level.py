"""Record-level training goes through the ledger: booked before a record is read, interruptible, and the app's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.trainers import NumpyTrainer, TorchTrainer, TrainingStopped
from device_sdk.trainers.protocol import units_of
from privacy import Ledger, LedgerKeys, NoiseSource, PrivacyBudget, PrivacyUnit, Request, SeededSource, perform
from privacy.errors import BudgetExhausted, UnsupportedModel
from privacy.mechanisms.dp_sgd import DpSgd
from tests.device_sdk.trainers.torch_cases import Items, mlp, records, same, state_of, weights_of

REQUEST = Request("test-server", "training", "task-1")


def mechanism(model, **terms):
    settings = {
        "sampling_rate": "1/4",
        "noise_multiplier": 3,
        "clip_norm": 1,
        "steps": 4,
        "expected_batch_size": 10,
        "learning_rate": "0.2",
        **terms,
    }
    return DpSgd({name: part.shape for name, part in weights_of(model).items()}, **settings)


def trainer_of(model, dataset=None):
    return TorchTrainer(model, nn.CrossEntropyLoss(), dataset or records())


@pytest.fixture
def ledger(tmp_path):
    budget = PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD)
    opened = Ledger.open(tmp_path / "ledger", LedgerKeys.generate(), budget)
    yield opened
    opened.close()


@pytest.mark.parametrize("trainer", [trainer_of(mlp()), NumpyTrainer(*(part.numpy() for part in records()))])
def test_a_trainer_protects_the_device_or_its_records(trainer):
    assert units_of(trainer) == {PrivacyUnit.DEVICE, PrivacyUnit.RECORD}


@pytest.mark.parametrize("dataset", [records(), Items(*records())], ids=["tensors", "items"])
def test_record_level_training_is_booked_and_released(ledger, dataset):
    model = mlp()
    before = state_of(model)
    terms = mechanism(model)
    data = trainer_of(model, dataset).training_data(weights_of(model))
    release = perform(ledger, terms, data, REQUEST, NoiseSource())
    assert release.for_sending() == release.payload
    assert set(terms.decode(release.payload)) == set(weights_of(model))
    assert release.cost.sampled is not None
    assert release.cost.sampled.steps == 4
    assert same(before, state_of(model))


def test_it_trains_from_the_tasks_weights():
    model = mlp()
    weights = {name: part * 2 for name, part in weights_of(model).items()}
    data = trainer_of(model).training_data(weights)
    trained = {name: parameter.detach().numpy() for name, parameter in data.model.named_parameters()}
    assert all(np.array_equal(trained[name], weights[name]) for name in weights)


def test_the_hook_between_batches_changes_no_update():
    model = mlp()
    calls: list[None] = []
    plain = trainer_of(model).training_data(weights_of(model))
    hooked = trainer_of(model).training_data(weights_of(model), lambda: calls.append(None))
    answers = [mechanism(model).answer(data, NoiseSource(SeededSource(3))) for data in (plain, hooked)]
    assert answers[0].payload == answers[1].payload
    assert calls


def test_a_stop_comes_through_and_what_was_booked_stays_booked(ledger):
    model = mlp()
    before = state_of(model)
    terms = mechanism(model, steps=20, noise_multiplier=6)

    def stop():
        # Refusals and choices are made on made-up records first; the ledger knows when the real ones begin.
        if ledger.status().sequence:
            raise TrainingStopped

    with pytest.raises(TrainingStopped):
        perform(ledger, terms, trainer_of(model).training_data(weights_of(model), stop), REQUEST, NoiseSource())
    assert same(before, state_of(model))
    spent = ledger.status().spent
    release = perform(ledger, terms, trainer_of(model).training_data(weights_of(model)), REQUEST, NoiseSource())
    assert release.payload
    assert ledger.status().spent == spent


def test_a_stop_that_were_an_exception_would_be_swallowed():
    class OrdinaryStop(Exception):
        pass

    def stop():
        raise OrdinaryStop

    data = replace(trainer_of(mlp()).training_data(weights_of(mlp()), stop), clipping="hooks")
    assert mechanism(mlp()).answer(data, NoiseSource(SeededSource(1))).payload


def test_batch_normalisation_is_refused_with_the_fix_named(ledger):
    model = mlp(nn.BatchNorm1d(5))
    data = trainer_of(model).training_data(weights_of(model))
    with pytest.raises(UnsupportedModel, match=r"BatchNorm1d.*(GroupNorm|ModuleValidator)"):
        perform(ledger, mechanism(model), data, REQUEST, NoiseSource())


def test_a_plan_beyond_the_budget_is_refused_before_training(ledger):
    model = mlp()
    calls: list[int] = []
    data = trainer_of(model).training_data(weights_of(model), lambda: calls.append(len(calls)))
    greedy = mechanism(model, noise_multiplier="0.3", steps=500)
    greedy.check(data)
    tried_out = len(calls)
    with pytest.raises(BudgetExhausted):
        perform(ledger, greedy, data, REQUEST, NoiseSource())
    assert len(calls) == 2 * tried_out


def test_torchs_generator_is_left_where_it_was(ledger):
    model = mlp(nn.Dropout(0.3))
    state = torch.get_rng_state()
    perform(ledger, mechanism(model), trainer_of(model).training_data(weights_of(model)), REQUEST, NoiseSource())
    assert torch.equal(torch.get_rng_state(), state)
