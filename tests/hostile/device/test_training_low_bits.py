"""A malicious server looks for the gradient in the low bits of a record-level update. It is not there.

Before noise was drawn in whole numbers it was: float32 noise on a float64 sum left the gradient below its last bit, and
some outputs of a float32 sum could not come from one of two records. Both kinds of noise are kept here as twins.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.trainers import NumpyTrainer, TorchTrainer
from privacy import NoiseSource
from privacy.errors import InvalidTerms
from privacy.mechanisms import dp_sgd
from privacy.mechanisms.dp_sgd import DpSgd
from privacy.training import dense_update, private_update
from privacy.training.dense_update import add_whole_gradients
from privacy.training.whole_gradients import grid_step

FEATURES, CLASSES = 64, 10
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 17, FEATURES) / 16
LABEL = 6
ZEROS = {"weight": np.zeros((CLASSES, FEATURES), np.float32), "bias": np.zeros(CLASSES, np.float32)}


def terms(weights, **changes):
    usual = {
        "sampling_rate": 1,
        "noise_multiplier": 512,
        "clip_norm": 16,
        "steps": 1,
        "expected_batch_size": 1,
        "learning_rate": 1,
    }
    return DpSgd({name: part.shape for name, part in weights.items()}, **{**usual, **changes})


class FloatNoise:
    """The twin: Gaussian noise of float32, added to whatever floats the sum has."""

    def __init__(self, noise, noise_multiplier, clip_norm=16.0, kind=np.float64):
        seed = int.from_bytes(noise.stream_key()[:8])
        self.draw = np.random.default_rng(seed).standard_normal
        self.step, self.kind = grid_step(clip_norm), kind
        self.deviation = np.float32(float(noise_multiplier) * clip_norm)

    def add_to(self, sums):
        noise = self.draw(len(sums), dtype=np.float32) * self.deviation
        sums[:] = ((sums * self.step).astype(self.kind) + noise).astype(np.float64) / self.step


def correlations(mechanism):
    """Of the record with what is left of a release when multiples of a power of two are taken away, for each power."""
    model = nn.Linear(FEATURES, CLASSES).double()
    trainer = TorchTrainer(model, nn.CrossEntropyLoss(), (torch.tensor(PIXELS[None]), torch.tensor([LABEL])))
    data = trainer.training_data(ZEROS)
    released = mechanism.decode_steps(mechanism.answer(data, NoiseSource()).payload)
    label_row = released[CLASSES:].reshape(CLASSES, FEATURES)[LABEL]
    found = []
    for bits in range(2, 40):
        residue = ((label_row + (1 << bits - 1)) % (1 << bits)) - (1 << bits - 1)
        found.append(0.0 if residue.std() == 0 else abs(np.corrcoef(residue, PIXELS)[0, 1]))
    return np.array(found)


@pytest.mark.statistical
@pytest.mark.parametrize("grid_bits", [8, 24])
@pytest.mark.parametrize("multiplier", [1, 512])
def test_the_low_bits_of_a_float64_model_hold_nothing(multiplier, grid_bits):
    # 38 correlations of 64 numbers, four of which tests: by chance 0.75 is passed less than once in a million.
    assert correlations(terms(ZEROS, noise_multiplier=multiplier, grid_bits=grid_bits)).max() < 0.75


def test_float32_noise_leaves_the_record_in_the_low_bits(monkeypatch):
    monkeypatch.setattr(dp_sgd, "deviation_in_steps", lambda multiplier: None)
    monkeypatch.setattr(private_update, "StepNoise", FloatNoise)
    assert correlations(terms(ZEROS, noise_multiplier=2**36)).max() > 0.99


@pytest.mark.parametrize("multiplier", [513, 2**16, 2**36])
def test_noise_so_large_that_it_would_be_coarser_than_a_gradient_is_refused(multiplier):
    with pytest.raises(InvalidTerms, match="nothing was booked"):
        terms(ZEROS, noise_multiplier=multiplier)


HIDDEN = 1024
SPREAD_OUT = {  # one record's gradient, spread over many weights
    "a0.weight": np.zeros((HIDDEN, FEATURES), np.float32),
    "a0.bias": np.full(HIDDEN, 2.0**-20, np.float32),
    "a1.weight": np.stack([np.ones(HIDDEN), np.zeros(HIDDEN)]).astype(np.float32),
    "a1.bias": np.zeros(2, np.float32),
}
FIRST = slice(HIDDEN, HIDDEN + HIDDEN * FEATURES)


def of_label(label):
    return NumpyTrainer(PIXELS[None].astype(np.float32), np.array([label])).training_data(SPREAD_OUT)


def whole_sum(data):
    sums = {name: np.zeros(part.shape) for name, part in SPREAD_OUT.items()}
    add_whole_gradients(data.factors(SPREAD_OUT, np.array([0])), 1.0, sums)
    return np.concatenate([sums[name].ravel() for name in sorted(sums)])[FIRST]


def released(mechanism, data):
    steps = mechanism.decode_steps(mechanism.answer(data, NoiseSource()).payload)[FIRST]
    return (-steps * mechanism.step).astype(np.float32)


def impossible_for_floats(outputs, sums):
    """Outputs that no float32 noise makes of float32 sums."""
    near = (outputs.astype(np.float64) - sums).astype(np.float32)
    candidates = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return ~np.any([each + sums == outputs for each in candidates], axis=0)


def test_every_output_is_possible_under_either_record():
    mechanism = terms(SPREAD_OUT, clip_norm=1, noise_multiplier=8, grid_bits=24)
    step = grid_step(1.0)
    for world in (0, 1):
        outputs = released(mechanism, of_label(world))
        for suspected in (0, 1):
            sums = whole_sum(of_label(suspected))
            noise = np.rint(outputs.astype(np.float64) / step) - sums  # a whole number, and so within its support
            assert np.array_equal(((sums + noise) * step).astype(np.float32), outputs)


def test_float32_noise_makes_outputs_that_one_of_two_records_cannot_make(monkeypatch):
    def floats(noise, multiplier):
        return FloatNoise(noise, multiplier, 1.0, np.float32)

    monkeypatch.setattr(dense_update, "StepNoise", floats)
    mechanism = terms(SPREAD_OUT, clip_norm=1, noise_multiplier=8, grid_bits=24)
    sums = (whole_sum(of_label(0)) * grid_step(1.0)).astype(np.float32)
    counts = [0, 0]
    for _ in range(5):
        for world in (0, 1):
            outputs = released(mechanism, of_label(world))
            large = np.abs(outputs) >= 1
            counts[world] += int(impossible_for_floats(outputs[large], sums[large]).sum())
    assert counts[0] == 0
    assert counts[1] > 0
