"""Record-level training without torch is the one with torch: same batches, same clipping, same noise, same update."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from device_sdk.trainers import NumpyTrainer, TorchTrainer, TrainingStopped
from privacy import NoiseSource, SeededSource
from privacy.errors import InvalidTerms
from privacy.mechanisms.dp_sgd import DenseFactors, DpSgd, TrainingData
from privacy.training import dense_update
from privacy.training.dense_update import add_clipped_sum
from privacy.training.whole_gradients import SLACK, OuterProducts

RNG = np.random.default_rng(5)
INPUTS = RNG.normal(size=(60, 6)).astype(np.float32)
LABELS = RNG.integers(4, size=60)


def model_of(*widths):
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def weights_of(model):
    return {name: part.detach().numpy().copy() for name, part in model.named_parameters()}


def mechanism(weights, **terms):
    usual = {
        "sampling_rate": "1/4",
        "noise_multiplier": "1/2",
        "clip_norm": 1,
        "steps": 6,
        "expected_batch_size": 15,
        "learning_rate": "0.5",
    }
    return DpSgd({name: part.shape for name, part in weights.items()}, **{**usual, **terms})


def update_of(trainer, weights, **terms):
    made = mechanism(weights, grid_bits=16, **terms)
    data = trainer.training_data(weights)
    if isinstance(data, TrainingData):
        data = replace(data, clipping="ghost")  # rounded to the grid as without torch
    answer = made.answer(data, NoiseSource(SeededSource("7")))
    return made.decode_steps(answer.payload) * made.step


def farthest_apart(model, **terms):
    weights = weights_of(model)
    torch_trainer = TorchTrainer(model, nn.CrossEntropyLoss(), (INPUTS, LABELS))
    one = update_of(torch_trainer, weights, **terms)
    other = update_of(NumpyTrainer(INPUTS, LABELS), weights, **terms)
    return float(np.abs(one - other).max()) / float(np.abs(one).max())


@pytest.mark.parametrize("widths", [(6, 4), (6, 8, 4), (6, 5, 7, 4)], ids=str)
@pytest.mark.parametrize("terms", [{}, {"momentum": "0.5"}, {"proximal": "0.3"}, {"clip_norm": "0.01"}], ids=str)
def test_the_update_is_that_of_torch(widths, terms):
    assert farthest_apart(model_of(*widths), **terms) < 1e-3


class ForgetsTheBias(OuterProducts):
    """Finds norms that are too short: factors made of them let a record count for more."""

    def squared_norms(self):
        return OuterProducts.of(self.xp, self.errors, self.inputs[:, :-1]).squared_norms()


def test_a_norm_that_comes_out_too_short_does_not_let_a_record_count_for_more(monkeypatch):
    monkeypatch.setattr(dense_update, "OuterProducts", ForgetsTheBias)
    small_inputs = DenseFactors("a", np.full((1, 6), 0.1, np.float32), np.ones((1, 4), np.float32))
    assert 0.49 < one_record_moves(small_inputs) <= 0.5
    # The whole numbers are looked at before they count. Were they not:
    monkeypatch.setattr(dense_update, "within_bound", lambda xp, scales, whole: whole(scales)[1])
    assert one_record_moves(small_inputs) > 1.0


def one_record_moves(factors, clip_norm=0.5):
    """How far a single record moves the sums."""
    into = {"a.weight": np.zeros((4, 6)), "a.bias": np.zeros(4)}
    add_clipped_sum([factors], clip_norm, into)
    return float(np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in into.values())))


@settings(deadline=None)
@example(24595656926595.0, 1.7060794472946133e28, 1)
@example(1e30, 3e13, 1)
@given(st.floats(1e-30, 1e30), st.floats(1e-30, 1e30), st.integers(0, 2**32 - 1))
def test_no_record_moves_a_sum_by_more_than_the_clip_norm(size, error, seed):
    rng = np.random.default_rng(seed)
    inputs = (rng.normal(size=(1, 6)) * size).astype(np.float32)
    errors = (rng.normal(size=(1, 4)) * error).astype(np.float32)
    assert one_record_moves(DenseFactors("a", inputs, errors)) <= 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_counts_as_zero(value):
    inputs, errors = np.ones((3, 6), np.float32), np.full((3, 4), 1e-3, np.float32)
    into, alone = ({"a.weight": np.zeros((4, 6), np.float32)} for _ in range(2))
    add_clipped_sum([DenseFactors("a", inputs[:2], errors[:2])], 1.0, alone)
    inputs[2, 0] = value
    with np.errstate(all="ignore"):
        add_clipped_sum([DenseFactors("a", inputs, errors)], 1.0, into)
    assert np.array_equal(into["a.weight"], alone["a.weight"])


def test_a_small_gradient_is_not_touched():
    factors = DenseFactors("a", np.ones((1, 6), np.float32), np.full((1, 4), 1e-3, np.float32))
    assert one_record_moves(factors) == pytest.approx(1e-3 * np.sqrt(4 * 7), rel=5e-3)
    assert one_record_moves(replace(factors, errors=factors.errors * 1e6)) == pytest.approx(0.5 / SLACK, rel=1e-3)


def test_the_weights_that_were_given_are_left_alone():
    weights = weights_of(model_of(6, 4))
    before = {name: part.copy() for name, part in weights.items()}
    update_of(NumpyTrainer(INPUTS, LABELS), weights)
    assert all(np.array_equal(weights[name], before[name]) for name in weights)


def test_another_model_is_refused_before_a_record_is_read():
    calls: list[None] = []
    data = NumpyTrainer(INPUTS, LABELS).training_data(weights_of(model_of(6, 4)), lambda: calls.append(None))
    with pytest.raises(InvalidTerms, match="nothing was booked"):
        mechanism(weights_of(model_of(6, 5, 4))).check(data)
    assert not calls


def test_it_stops_between_batches():
    def stop():
        raise TrainingStopped

    weights = weights_of(model_of(6, 4))
    data = NumpyTrainer(INPUTS, LABELS).training_data(weights, stop)
    with pytest.raises(TrainingStopped):
        mechanism(weights).answer(data, NoiseSource(SeededSource("7")))


def test_a_device_without_records_answers_with_noise_alone():
    weights = weights_of(model_of(6, 4))
    nobody = NumpyTrainer(np.empty((0, 6), np.float32), np.empty(0, np.int64))
    assert np.abs(update_of(nobody, weights)).max() > 0


def test_no_torch_is_imported():
    code = (
        "import sys, numpy as np\n"
        "from device_sdk.trainers import NumpyTrainer\n"
        "from privacy import NoiseSource\n"
        "from privacy.mechanisms.dp_sgd import DpSgd\n"
        "weights = {'a.weight': np.zeros((3, 2), np.float32)}\n"
        "data = NumpyTrainer(np.ones((9, 2)), np.zeros(9, int)).training_data(weights)\n"
        "DpSgd({'a.weight': (3, 2)}, '1/2', 1, 1, 3, 4, '0.1').answer(data, NoiseSource())\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
