"""Whatever a device declines, its own log says what and why; the server hears less."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

from device_sdk.conditions import Conditions
from device_sdk.policy import Policy, Reason
from device_sdk.trainers import ModelMismatch
from device_sdk.wire.messages import DeclineReason
from privacy import Ledger, PrivacyUnit
from tests.device_sdk.runtime.federation import RECORD_LEVEL
from tests.device_sdk.runtime.trainers import run_until, trainer

pytestmark = pytest.mark.integration


@pytest.fixture
def declined(caplog):
    """What the log says was declined so far, and why."""
    caplog.set_level(logging.INFO, "device_sdk")
    return lambda: [
        (record.fields["name"], record.fields["reason"])
        for record in caplog.records
        if getattr(record, "event", "") == "declined"
    ]


class Mismatched:
    def train(self, weights, settings, between_batches):
        raise ModelMismatch("not this one; nothing was trained")


class Plugged:
    """Charging when the device looks for work, and no longer when the work is there."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.asked != 3  # before connecting, before checking in, and then before taking the task


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(least_noise_multiplier=100), (Reason.NOISE, DeclineReason.TERMS)),
        (Policy(most_model_bytes=10), (Reason.MODEL_SIZE, DeclineReason.MODEL)),
        (Policy(epsilon_per_round=0.001), (Reason.ROUND_COST, DeclineReason.TERMS)),
    ],
)
def test_what_the_policy_refuses_is_logged_by_name_and_reason(begin, tmp_path, declined, policy, expected):
    reason, heard = expected
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path, policy=policy) as device:
        run_until(device, federation, lambda desk: desk.declines, trainer())
    assert declined() == [("task-1", reason.value)]
    assert [told.reason for _, told in federation.server.desk.declines] == [heard]


def test_a_unit_that_the_app_does_not_want_is_logged(begin, tmp_path, declined):
    federation = begin(rounds=1, terms=RECORD_LEVEL)
    federation.altered = lambda task: replace(task, objective=replace(task.objective, epochs=None, steps=3))
    with federation.enrolled(tmp_path, policy=Policy(unit=PrivacyUnit.DEVICE)) as device:
        run_until(device, federation, lambda desk: desk.declines, trainer())
    assert declined() == [("task-1", Reason.UNIT.value)]


def test_a_model_that_the_trainer_cannot_train_is_logged_once(begin, tmp_path, declined):
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path) as device:
        run_until(device, federation, lambda desk: desk.declines, Mismatched())
    assert declined() == [("task-1", Reason.MODEL.value)]


def test_conditions_that_fail_in_between_are_logged(begin, tmp_path, declined):
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path, conditions=Conditions(charging=Plugged())) as device:
        run_until(device, federation, lambda desk: desk.declines, trainer())
    assert declined()[0] == ("task-1", Reason.CONDITIONS.value)


def test_what_the_app_declines_or_forgets_is_logged(begin, tmp_path, declined):
    federation = begin(rounds=2)
    with federation.enrolled(tmp_path) as device:
        for task in device.tasks(timeout_seconds=30):
            if task.name == "task-1":
                task.decline()
            else:
                threading.Thread(target=stop_after, args=(device, federation, 2)).start()
    assert declined() == [("task-1", Reason.APP.value), ("task-2", Reason.APP.value)]


def stop_after(device, federation, num_declines):
    federation.server.desk.wait_for(lambda desk: len(desk.declines) == num_declines)
    device.stop()


def test_a_quota_that_another_process_sets_between_two_rounds_is_noticed_before_training(begin, tmp_path, declined):
    federation = begin(rounds=2, with_feedback=False)
    trained = []

    class Counting:
        def train(self, weights, settings, between_batches):
            trained.append(len(federation.tasks))
            return {name: np.zeros_like(value) for name, value in weights.items()}

    with federation.enrolled(tmp_path) as device:

        def before_the_second(task):
            if task.task == "task-2":
                with Ledger.open(federation.config(tmp_path).state, device._ledger._session.keys) as other:
                    other.set_quota(federation.server.authority.server, 1)
            return task

        federation.altered = before_the_second
        run_until(device, federation, lambda desk: desk.declines, Counting())
    assert trained == [1]
    assert declined() == [("task-2", Reason.BUDGET.value)]


def test_a_task_that_is_done_is_not_logged_as_declined(begin, tmp_path, declined):
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
    assert declined() == []
