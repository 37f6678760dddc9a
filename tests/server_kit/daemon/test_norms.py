"""How long an update may be: no honest one is refused, and little more than honest ones is taken."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from device_sdk.wire import messages as m
from device_sdk.wire.task_terms import mechanism_of
from privacy.mechanisms.dp_sgd import DenseFactors, DenseTrainingData
from privacy.packing import unpack_array
from privacy.randomness import NoiseSource
from server_kit import honest_lengths
from server_kit.daemon import norms
from server_kit.honest_lengths import Descent, Noised, device_level, record_level

LABELS = 10
FEATURES = 64
SIZE = LABELS * (FEATURES + 1)


def task(level: str = "record", **given: Any) -> m.Task:
    """Of a softmax regression on images of 8 x 8; by default the terms under which a model was replaced."""
    terms = {"clip_norm": "1", "noise_multiplier": "1.5"} | {
        name: given.pop(name) for name in ("clip_norm", "noise_multiplier") if name in given
    }
    if level == "record":
        rate, batch = given.pop("sampling_rate", "1/10"), given.pop("expected_batch_size", "16")
        bits = given.pop("grid_bits", 8)
        privacy: m.PrivacyTerms = m.RecordLevelTerms(
            **terms, sampling_rate=rate, expected_batch_size=batch, relation=m.Relation.REPLACE, grid_bits=bits
        )
    else:
        privacy = m.DeviceLevelTerms(**terms, relation=m.Relation.REPLACE, grid_bits=given.pop("grid_bits", 17))
    shapes = {"bias": (LABELS,), "weight": (LABELS, FEATURES)}
    model = m.ModelReference(
        0, m.Blob(b"\1" * 32, 4 * SIZE), tuple(m.TensorSpec(name, m.Dtype.F32, shape) for name, shape in shapes.items())
    )
    objective = {"learning_rate": 2.0, "batch_size": 16, "epochs": None, "steps": 10} | given
    return m.Task("t" * 32, "d" * 64, "0", 0, model, m.LocalObjective(**objective), privacy, 60.0)


def one_way(records: int) -> DenseTrainingData:
    """A device whose records all pull the same way, each with as much as clipping lets through."""

    def factors(weights: Any, chosen: Any) -> list[DenseFactors]:
        errors = np.zeros((len(chosen), LABELS), dtype=np.float32)
        errors[:, 3] = 100.0
        return [DenseFactors("", np.ones((len(chosen), FEATURES), dtype=np.float32), errors)]

    weights = {"weight": np.zeros((LABELS, FEATURES), np.float32), "bias": np.zeros(LABELS, np.float32)}
    return DenseTrainingData(_named(weights), records, _of_layer(factors))


def _named(weights: dict[str, Any]) -> dict[str, Any]:
    return {f"layer.{name}": value for name, value in weights.items()}


def _of_layer(factors: Any) -> Any:
    def named(weights: Any, chosen: Any) -> list[DenseFactors]:
        return [DenseFactors("layer", each.inputs, each.errors) for each in factors(weights, chosen)]

    return named


def sent(asked: m.Task, records: int) -> float:
    """The length of what the real mechanism makes of the worst device with so many records."""
    mechanism: Any = mechanism_of(asked)
    if isinstance(asked.privacy, m.DeviceLevelTerms):
        far = {name: np.full(shape, 9.0) for name, shape in mechanism.shapes.items()}
        payload = mechanism.answer(far, NoiseSource()).payload
    else:
        layered: Any = mechanism_of(_layered(asked))
        payload = layered.answer(one_way(records), NoiseSource()).payload
    return float(np.linalg.norm(unpack_array(payload, mechanism.size, mechanism.width_bytes))) * mechanism.step


def _layered(asked: m.Task) -> m.Task:
    tensors = tuple(replace(spec, name=f"layer.{spec.name}") for spec in asked.model.tensors)
    return replace(asked, model=replace(asked.model, tensors=tensors))


RECORD_TERMS: list[dict[str, Any]] = [
    {},
    {"steps": 5, "learning_rate": 0.5, "noise_multiplier": "2", "sampling_rate": "0.05"},
    {"learning_rate": 0.1, "noise_multiplier": "2", "sampling_rate": "0.05"},
    {"noise_multiplier": "8"},
    {"noise_multiplier": "0.5", "steps": 3},
    {"momentum": 0.9},
    {"momentum": 0.5, "proximal": 0.1},
    {"proximal": 0.2},
    {"steps": 1, "expected_batch_size": "64", "sampling_rate": "1/2"},
    {"sampling_rate": "1", "expected_batch_size": "20"},
    {"clip_norm": "0.01", "steps": 40},
]
DEVICE_TERMS: list[dict[str, Any]] = [
    {"noise_multiplier": "8", "clip_norm": "4"},
    {"noise_multiplier": "12"},
    {"noise_multiplier": "0.5"},
    {"noise_multiplier": "0.25", "grid_bits": 8},
]


def records_for(asked: m.Task) -> int:
    terms = asked.privacy
    assert isinstance(terms, m.RecordLevelTerms)
    return int(Fraction(terms.expected_batch_size) / Fraction(terms.sampling_rate))


@pytest.mark.statistical
@pytest.mark.parametrize("terms", RECORD_TERMS, ids=str)
def test_what_the_worst_honest_device_sends_is_taken_and_the_bound_is_near_it(terms):
    asked = task(**terms)
    lengths = [sent(asked, records_for(asked)) for _ in range(5)]
    assert max(lengths) <= norms.longest(asked, 1)
    # The tail of a batch's size is what is left: it matters most where there is one small batch.
    assert norms.longest(asked, 1) <= 3.5 * min(lengths)


@pytest.mark.statistical
@pytest.mark.parametrize("terms", RECORD_TERMS, ids=str)
def test_a_device_with_four_times_the_records_is_taken_too(terms):
    asked = task(**terms)
    assert sent(asked, 4 * records_for(asked)) <= norms.longest(asked) <= 10 * sent(asked, records_for(asked))


@pytest.mark.statistical
@pytest.mark.parametrize("terms", DEVICE_TERMS, ids=str)
def test_a_whole_update_is_taken_and_its_bound_is_near_it(terms):
    asked = task("device", **terms)
    lengths = [sent(asked, 0) for _ in range(20)]
    assert max(lengths) <= norms.longest(asked) <= 1.35 * min(lengths)


def test_the_length_that_replaced_a_model_is_refused():
    """One device of nine did so with 218; two thousand were allowed, where honest devices send about twenty."""
    assert norms.longest(task()) < 218 / 1.5


@pytest.mark.parametrize("terms", RECORD_TERMS, ids=str)
def test_a_longer_update_can_be_said_so_the_bound_is_a_guard(terms):
    """A bound beyond the largest number that fits into an update would refuse nothing."""
    asked = task(**terms)
    mechanism = mechanism_of(asked)
    sayable = math.sqrt(mechanism.size) * 2 ** (8 * mechanism.width_bytes - 1) * mechanism.step
    assert norms.longest(asked) < sayable / 2


def test_the_bound_it_replaces_is_caught():
    """Ten times all records in every step: by these terms more than an update can say."""

    def vacuous(asked: m.Task) -> float:
        spread = 2 * (math.sqrt(SIZE) + 10)
        return 0.5 * 5 * (10 * 16 / 0.05 + spread) / 16

    asked = task(**RECORD_TERMS[1])
    mechanism = mechanism_of(asked)
    assert vacuous(asked) > math.sqrt(mechanism.size) * 2 ** (8 * mechanism.width_bytes - 1) * mechanism.step
    assert vacuous(asked) > 20 * norms.longest(asked)


@pytest.mark.statistical
def test_the_quantile_of_noise_is_one_of_noise(monkeypatch):
    """The same formula at a chance that can be seen."""
    size, draws = 50, 200_000
    generator = np.random.default_rng(7)
    for multiplier in (0.3, 2.0):
        noised = Noised(size, 1.0, multiplier, 0.0)
        values = generator.normal(0, multiplier, (draws, size))
        values[:, 0] += 1.0
        lengths = np.linalg.norm(values, axis=1)
        monkeypatch.setattr(honest_lengths, "_CHANCE", 1e-2)
        bound = device_level(noised)
        assert (lengths > bound).mean() <= 1e-2
        assert bound < 1.2 * np.quantile(lengths, 0.99)


def test_more_of_anything_is_longer():
    noised = Noised(100, 1.0, 1.0, 0.001)
    usual = Descent(10, 16, 0.1, 0.5)
    bound = record_level(noised, usual)
    for longer in (Descent(20, 16, 0.1, 0.5), Descent(10, 16, 0.1, 1.0), Descent(10, 16, 0.1, 0.5, 0.9)):
        assert record_level(noised, longer) > bound
    assert record_level(noised, Descent(10, 16, 0.1, 0.5, 0.0, 0.1)) < bound
    assert record_level(noised, usual, 4) > bound
    assert record_level(noised, Descent(10, 16, 1.0, 0.5)) <= bound
