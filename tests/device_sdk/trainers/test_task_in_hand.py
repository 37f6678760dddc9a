"""An app holds a task until it is handed in, declined or over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from device_sdk.failures import Failures
from device_sdk.trainers import (
    InvalidSettings,
    LocalUpdate,
    ModelMismatch,
    TrainerError,
    TrainingFailed,
    TrainingStopped,
)
from device_sdk.trainers.task_in_hand import TaskInHand, released_tensors, settings_of
from device_sdk.wire.messages import (
    Blob,
    DeviceLevelTerms,
    Dtype,
    LocalObjective,
    ModelReference,
    RecordLevelTerms,
    Relation,
    Task,
    TensorSpec,
)

TASK = Task(
    task="task-1",
    device="0" * 32,
    cohort="0",
    round=7,
    model=ModelReference(
        1, Blob(bytes(32), 1000), (TensorSpec("w", Dtype.F32, (3, 2)), TensorSpec("b", Dtype.F32, (3,)))
    ),
    objective=LocalObjective(0.1, 10, epochs=2, momentum=0.5, proximal=0.25),
    privacy=DeviceLevelTerms("1", "8", Relation.REPLACE, 17),
    deadline_seconds=60.0,
)
RECORD_TASK = replace(
    TASK,
    privacy=RecordLevelTerms("1", "2", "1/20", "10", Relation.REPLACE, 8),
    objective=LocalObjective(0.1, 10, steps=5),
)
WEIGHTS = {"b": np.zeros(3, np.float32), "w": np.zeros((3, 2), np.float32)}
ONES = {name: part + 1 for name, part in WEIGHTS.items()}


def test_the_settings_are_those_of_the_objective():
    settings = settings_of(TASK.objective)
    assert (settings.epochs, settings.steps, settings.momentum, settings.proximal) == (2, None, 0.5, 0.25)
    assert settings_of(RECORD_TASK.objective).steps == 5


class Desk:
    """Where a task is handed in or given back."""

    def __init__(self, task=TASK):
        self.handed_in: list[Any] = []
        self.given_back = 0
        self.failures = Failures()
        self.held = TaskInHand(
            task,
            WEIGHTS,
            settings_of(task.objective),
            between_batches=lambda: None,
            hand_in=self.handed_in.append,
            give_back=self.give_back,
            failed=self.failures.note,
            is_stopped=lambda: False,
        )

    def give_back(self, reason=None):
        self.given_back += 1


class Learns:
    def __init__(self, outcome):
        self._outcome = outcome

    def train(self, weights, settings, between_batches):
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return LocalUpdate(self._outcome)


class HasRecords(Learns):
    def training_data(self, weights, between_batches):
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def test_what_a_trainer_learns_is_handed_in_once():
    desk = Desk()
    assert desk.held.round == 7
    desk.held.train(Learns(ONES))
    assert desk.handed_in == [ONES]
    for call in (lambda: desk.held.submit(ONES), desk.held.decline, lambda: desk.held.train(Learns(ONES))):
        with pytest.raises(TrainerError, match="over"):
            call()
    assert (len(desk.handed_in), desk.given_back) == (1, 0)


class RaisesPastException(BaseException):
    """As a cancelled coroutine, or a library that means well."""


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("17"), MemoryError(), RaisesPastException("17"), TrainingStopped("of its own accord")]
)
def test_a_failing_trainer_is_answered_for_with_zeros(error):
    desk = Desk()
    desk.held.train(Learns(error))
    assert isinstance(desk.failures.untold(), TrainingFailed)
    assert {name: part.tolist() for name, part in desk.handed_in[0].items()} == {
        name: part.tolist() for name, part in WEIGHTS.items()
    }


@pytest.mark.parametrize("error", [ModelMismatch("no"), InvalidSettings("no")])
def test_what_follows_from_the_task_alone_is_not_answered_for(error):
    desk = Desk()
    with pytest.raises(type(error)):
        desk.held.train(Learns(error))
    assert desk.handed_in == []
    desk.held.decline()
    assert desk.given_back == 1


def test_a_task_for_halves_wants_halves():
    desk = Desk(replace(TASK, objective=replace(TASK.objective, halves=True)))
    with pytest.raises(InvalidSettings, match="halves"):
        desk.held.submit(ONES)
    desk.held.submit(LocalUpdate(ONES, (ONES, WEIGHTS)))
    assert set(desk.handed_in[0]) == {"first/b", "first/w", "second/b", "second/w"}
    assert released_tensors(LocalUpdate(ONES)) is ONES


def test_record_level_training_is_handed_in_as_records():
    desk, records = Desk(RECORD_TASK), object()
    desk.held.train(HasRecords(records))
    assert desk.handed_in == [records]


def test_a_trainer_without_record_level_training_refuses_it():
    with pytest.raises(ModelMismatch, match="record-level"):
        Desk(RECORD_TASK).held.train(Learns(ONES))


def test_records_that_cannot_be_read_are_told_without_what_they_hold():
    desk = Desk(RECORD_TASK)
    desk.held.train(HasRecords(KeyError("424242")))
    failure = desk.failures.untold()
    assert isinstance(failure, TrainingFailed)
    assert "KeyError" in str(failure)
    assert "424242" not in str(failure)
    assert [(data.num_records, data.weights) for data in desk.handed_in] == [(0, WEIGHTS)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_ends_the_app_ends_it(error):
    desk = Desk()
    with pytest.raises(type(error)):
        desk.held.train(Learns(error))
    assert (desk.handed_in, desk.failures.counts) == ([], {})


def test_a_trainer_that_is_told_to_stop_has_not_failed():
    desk = Desk()
    desk.held._is_stopped = lambda: True
    with pytest.raises(TrainingStopped):
        desk.held.train(Learns(TrainingStopped("by order")))
    assert (desk.handed_in, desk.failures.counts) == ([], {})
