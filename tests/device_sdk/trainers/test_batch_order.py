"""An epoch visits every record once, halves share no record, and nobody can predict the order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.trainers import InvalidSettings, StreamOfWords, TrainingSettings
from device_sdk.trainers.batch_order import steps

SIZES = st.integers(min_value=0, max_value=40)
SETTINGS = st.builds(
    TrainingSettings,
    learning_rate=st.just(0.1),
    batch_size=st.integers(min_value=1, max_value=50),
    epochs=st.integers(min_value=1, max_value=4),
    steps=st.none() | st.integers(min_value=0, max_value=30),
    halves=st.booleans(),
)


def taken(num_records, settings, seed=0):
    return list(steps(num_records, settings, StreamOfWords(seed)))


@given(SIZES, SETTINGS)
def test_there_are_as_many_steps_as_the_settings_say(num_records, settings):
    assert len(taken(num_records, settings)) == settings.steps_for(num_records)


@given(st.integers(min_value=1, max_value=40), SETTINGS)
def test_every_epoch_visits_every_record_once(num_records, settings):
    found = taken(num_records, settings)
    per_epoch = math.ceil(num_records / settings.batch_size)
    for start in range(0, len(found) - per_epoch + 1, per_epoch):
        visited = np.concatenate([step.records for step in found[start : start + per_epoch]])
        assert sorted(visited) == list(range(num_records))


@given(st.integers(min_value=1, max_value=40), SETTINGS)
def test_no_batch_is_larger_than_asked_for(num_records, settings):
    assert all(1 <= len(step.records) <= settings.batch_size for step in taken(num_records, settings))


def shared_between_halves(halves):
    settings = TrainingSettings(0.1, batch_size=4, epochs=5, halves=halves)
    found = taken(37, settings)
    first, second = (
        {int(record) for step in found if step.first_half is half for record in step.records} for half in (True, False)
    )
    return first & second


def test_no_record_serves_both_halves():
    assert shared_between_halves(halves=True) == set()


def test_a_plain_reshuffle_would_serve_both_halves():
    assert shared_between_halves(halves=False)


def test_a_single_epoch_is_the_same_with_and_without_halves():
    with_halves, without = (taken(37, TrainingSettings(0.1, batch_size=4, halves=halves)) for halves in (True, False))
    assert [step.records.tolist() for step in with_halves] == [step.records.tolist() for step in without]


def test_epochs_differ_from_each_other():
    first, second = taken(40, TrainingSettings(0.1, batch_size=40, epochs=2))
    assert first.records.tolist() != second.records.tolist()


def test_an_order_is_secret_unless_it_has_a_seed():
    settings = TrainingSettings(0.1, batch_size=40)
    secret = [next(steps(40, settings, StreamOfWords())).records.tolist() for _ in range(2)]
    seeded = [next(steps(40, settings, StreamOfWords(3))).records.tolist() for _ in range(2)]
    assert secret[0] != secret[1]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"batch_size": True},
        {"epochs": 0},
        {"steps": -1},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": math.nan},
        {"proximal": -1.0},
        {"proximal": math.inf},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InvalidSettings, match="nothing was trained"):
        TrainingSettings(**{"learning_rate": 0.1, **settings})
