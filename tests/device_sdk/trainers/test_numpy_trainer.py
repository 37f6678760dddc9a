"""A device without torch learns, leaves what it was given alone, and stops between batches."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from device_sdk.trainers import (
    InvalidSettings,
    ModelMismatch,
    NumpyTrainer,
    StreamOfWords,
    TrainingSettings,
    TrainingStopped,
)
from privacy import ClippedUpdate, NoiseSource, SeededSource
from tests.architecture.repository import ROOT

SETTINGS = TrainingSettings(0.5, batch_size=8, epochs=20)


def blobs(seed=0, records=90):
    """Three heaps of points that a line can tell apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, size=records)
    centres = np.array([[0.0, 3.0], [3.0, -2.0], [-3.0, -2.0]])
    return (centres[labels] + rng.normal(size=(records, 2))).astype(np.float32), labels


def start(*widths, seed=1):
    rng = np.random.default_rng(seed)
    weights = {}
    for number, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"{number}.weight"] = rng.normal(scale=0.5, size=(fan_out, fan_in)).astype(np.float32)
        weights[f"{number}.bias"] = np.zeros(fan_out, dtype=np.float32)
    return weights


def accuracy(weights, inputs, labels):
    values = inputs
    layers = len(weights) // 2
    for number in range(layers):
        values = values @ weights[f"{number}.weight"].T + weights[f"{number}.bias"]
        values = values if number == layers - 1 else np.maximum(values, 0)
    return float((values.argmax(axis=1) == labels).mean())


@pytest.mark.parametrize("widths", [(2, 3), (2, 8, 3)])
def test_training_learns(widths):
    inputs, labels = blobs()
    before = start(*widths)
    update = NumpyTrainer(inputs, labels).train(before, SETTINGS).update
    after = {name: before[name] + update[name] for name in before}
    assert accuracy(after, inputs, labels) > 0.9
    assert accuracy(after, inputs, labels) > accuracy(before, inputs, labels)


def test_what_was_given_is_left_alone():
    (inputs, labels), weights = blobs(), start(2, 8, 3)
    copies = [array.copy() for array in (inputs, labels, *weights.values())]
    NumpyTrainer(inputs, labels).train(weights, SETTINGS)
    assert all(np.array_equal(*pair) for pair in zip(copies, (inputs, labels, *weights.values()), strict=True))


def test_the_update_fits_the_mechanism_that_noises_it():
    weights = start(2, 8, 3)
    update = NumpyTrainer(*blobs()).train(weights, SETTINGS).update
    assert {name: (part.shape, part.dtype) for name, part in update.items()} == {
        name: (part.shape, np.dtype(np.float32)) for name, part in weights.items()
    }
    mechanism = ClippedUpdate({name: part.shape for name, part in weights.items()}, clip_norm=1, noise_multiplier=1)
    mechanism.check(update)
    assert mechanism.answer(update, NoiseSource(SeededSource(1))).payload


def test_training_that_runs_off_to_infinity_neither_warns_nor_raises():
    update = NumpyTrainer(*blobs()).train(start(2, 8, 3), TrainingSettings(1e30, epochs=5)).update
    assert not all(np.isfinite(part).all() for part in update.values())


def test_images_are_taken_as_rows():
    inputs, labels = blobs()
    shaped = NumpyTrainer(inputs.reshape(-1, 1, 2), labels, order=StreamOfWords(seed=4))
    flat = NumpyTrainer(inputs, labels, order=StreamOfWords(seed=4))
    one, other = (trainer.train(start(2, 3), SETTINGS).update["0.weight"] for trainer in (shaped, flat))
    assert np.array_equal(one, other)


def test_a_mask_keeps_what_it_does_not_name():
    weights = start(2, 8, 3)
    mask = {name: np.arange(part.size).reshape(part.shape) % 2 == 0 for name, part in weights.items()}
    update = NumpyTrainer(*blobs()).train(weights, TrainingSettings(0.5, mask=mask, proximal=0.1, momentum=0.5)).update
    assert all((part[~mask[name]] == 0).all() for name, part in update.items())
    assert all((part[mask[name]] != 0).any() for name, part in update.items())


@pytest.mark.parametrize(
    "mask",
    [
        {"0.weight": np.ones((3, 2), dtype=bool)},
        {"0.weight": np.ones((2, 3), dtype=bool), "0.bias": np.ones(3, dtype=bool)},
        {"0.weight": np.ones((3, 2)), "0.bias": np.ones(3)},
    ],
)
def test_a_mask_of_another_form_is_refused(mask):
    with pytest.raises(InvalidSettings, match="nothing was trained"):
        NumpyTrainer(*blobs()).train(start(2, 3), TrainingSettings(0.5, mask=mask))


class StopsAt:
    def __init__(self, batch):
        self.calls, self._batch = 0, batch

    def __call__(self):
        self.calls += 1
        if self.calls == self._batch:
            raise TrainingStopped


def test_training_asks_before_every_batch_and_stops_when_told():
    asked = StopsAt(batch=-1)
    NumpyTrainer(*blobs(records=20)).train(start(2, 3), TrainingSettings(0.5, batch_size=8, epochs=2), asked)
    assert asked.calls == 6
    told = StopsAt(batch=3)
    with pytest.raises(TrainingStopped):
        NumpyTrainer(*blobs(records=20)).train(start(2, 3), TrainingSettings(0.5, batch_size=8, epochs=2), told)
    assert told.calls == 3


def test_a_stop_passes_code_that_catches_every_exception():
    assert not issubclass(TrainingStopped, Exception)


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        (np.ones((3, 2)), np.zeros(2, dtype=int)),
        (np.ones((3, 2)), np.zeros(3)),
        (np.ones((3, 2)), np.zeros((3, 1), dtype=int)),
        (np.array(["a", "b"]), np.zeros(2, dtype=int)),
        (np.float32(1), np.zeros(1, dtype=int)),
    ],
)
def test_records_of_another_form_are_refused_at_once(inputs, labels):
    with pytest.raises(InvalidSettings, match="nothing was kept"):
        NumpyTrainer(inputs, labels)


def test_a_model_for_other_records_is_refused():
    trainer = NumpyTrainer(*blobs())
    trainer.check_model({"0.weight": (3, 2)})
    for call in (lambda: trainer.train(start(5, 3), SETTINGS), lambda: trainer.check_model({"0.weight": (3, 5)})):
        with pytest.raises(ModelMismatch, match="takes 5 numbers a record"):
            call()
    whole = {name: part.astype(np.int64) for name, part in start(2, 3).items()}
    with pytest.raises(ModelMismatch, match="floating point"):
        NumpyTrainer(*blobs()).train(whole, SETTINGS)


def printed_by(code):
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_it_needs_no_torch():
    code = "import sys; from device_sdk.trainers import NumpyTrainer; print('torch' in sys.modules)"
    assert printed_by(code).strip() == "False"


def test_a_missing_torch_is_told_with_its_remedy():
    told = printed_by(
        "import sys; sys.modules['torch'] = None\n"
        "import device_sdk.trainers as trainers\n"
        "try: trainers.TorchTrainer\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert told.startswith("MissingExtra")
    assert "covey[torch]" in told
