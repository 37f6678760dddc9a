"""A server that asks for too much, again, or out of turn is declined, and learns no more than that."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from device_sdk.policy import Policy
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ComeBack, DeclineReason, ErrorCode
from privacy import PrivacyUnit
from privacy.errors import BudgetExhausted
from tests.device_sdk.runtime.federation import (
    RECORD_LEVEL,
    check_reconciled,
    entries_of,
    feedback_to,
)
from tests.device_sdk.runtime.trainers import LABELS, run_until, trainer

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("altered", "policy", "heard"),
    [
        (lambda task: replace(task, device="f" * 32), Policy(), DeclineReason.NOT_NOW),
        (
            lambda task: replace(task, privacy=replace(task.privacy, noise_multiplier="0.01")),
            Policy(),
            DeclineReason.TERMS,
        ),
        (lambda task: replace(task, privacy=replace(task.privacy, clip_norm="1000000")), None, DeclineReason.TERMS),
        (
            lambda task: replace(task, privacy=RECORD_LEVEL, objective=replace(task.objective, epochs=None, steps=3)),
            Policy(),
            DeclineReason.TERMS,
        ),
    ],
    ids=["another device", "greedy noise", "other clip norm", "amplification that does not hold"],
)
def test_a_server_that_asks_for_too_much_is_declined_and_learns_nothing(begin, tmp_path, altered, policy, heard):
    federation = begin(rounds=1)
    federation.altered = altered
    policy = policy or Policy(agreed=federation.terms)
    with federation.enrolled(tmp_path, policy=policy) as device:
        assert run_until(device, federation, lambda desk: desk.declines, trainer()) == 0
    assert [decline.reason for _, decline in federation.server.desk.declines] == [heard]
    assert federation.updates == []
    assert len(entries_of(tmp_path / "state")) == 1


def test_a_task_that_was_done_is_not_done_again(begin, tmp_path):
    federation = begin(rounds=2)
    federation.altered = lambda task: replace(task, task="task-1")
    with federation.enrolled(tmp_path) as device:
        assert run_until(device, federation, lambda desk: desk.declines, trainer()) == 1
    assert len(federation.updates) == 1
    check_reconciled(federation, tmp_path / "state")


def test_a_task_that_only_the_ledger_remembers_is_not_done_again_and_ends_nothing(begin, tmp_path, monkeypatch):
    monkeypatch.setattr("device_sdk.state.MOST_REMEMBERED", 1)
    federation = begin(rounds=3)
    names = iter(["task-1", "task-2", "task-1", "task-3"])
    federation.altered = lambda task: replace(task, task=next(names))
    with federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), rounds=3, timeout_seconds=30) == 3
    assert [header.task for header, _ in federation.updates] == ["task-1", "task-2", "task-3"]
    assert [decline.task for _, decline in federation.server.desk.declines] == ["task-1"]
    check_reconciled(federation, tmp_path / "state")


def test_a_task_that_nobody_asked_for_is_declined(begin, tmp_path):
    federation = begin(rounds=2)
    honest = federation._accept

    def accept_and_push(name, header, parcel):
        accepted = honest(name, header, parcel)
        federation.server.gateway.push(name, replace(federation.tasks[header.task], task="unasked"))
        return accepted

    federation._accept = accept_and_push
    with federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
    federation.server.desk.wait_for(lambda desk: desk.declines)
    assert [decline.task for _, decline in federation.server.desk.declines] == ["unasked"]
    check_reconciled(federation, tmp_path / "state")


def test_feedback_that_nobody_asked_for_or_that_is_said_twice_changes_nothing(begin, tmp_path):
    federation = begin(rounds=2)
    with federation.enrolled(tmp_path, exploration={"first": 0.0, "least": 0.0}) as device:
        device.run(trainer(), rounds=1, timeout_seconds=30)
        (_, first) = federation.server.desk.check_ins[0]
        honest = federation._accept

        def accept_and_repeat(name, header, parcel):
            for _ in range(3):
                federation.server.gateway.push(name, feedback_to(federation.updates[0][0], reward_change=-100.0))
            return honest(name, header, parcel)

        federation._accept = accept_and_repeat
        device.run(trainer(), rounds=1, timeout_seconds=30)
        federation.rounds = 3
        device.run(trainer(), rounds=1, timeout_seconds=30)
    (_, last) = federation.server.desk.check_ins[-1]
    assert first.affinity.cohort == last.affinity.cohort
    assert last.affinity.reward > 0


def test_a_server_that_says_come_back_later_is_left_alone(begin, tmp_path):
    federation = begin()
    asked_at = []

    def answer(device, check_in):
        asked_at.append(time.monotonic())
        return ComeBack(0.3)

    federation.server.desk.answer = answer
    with federation.enrolled(tmp_path) as device:
        run_until(device, federation, lambda desk: len(desk.check_ins) == 3, trainer())
    assert min(np.diff(asked_at)) > 0.29


def test_a_revoked_device_is_told_and_stops(begin, tmp_path):
    federation = begin()
    with federation.enrolled(tmp_path) as device:
        name = device.status().device
        federation.server.register.revoke(name)
        with pytest.raises(Refused) as refusal:
            device.run(trainer(), timeout_seconds=30)
    assert refusal.value.code is ErrorCode.REVOKED


def test_a_histogram_beyond_the_budget_is_refused_and_can_be_asked_for_with_less(begin, tmp_path):
    federation = begin()
    with federation.enrolled(tmp_path) as device:
        for _ in range(2):
            with pytest.raises(BudgetExhausted):
                device.share_label_histogram(LABELS, num_labels=3, epsilon=100)
        assert device.share_label_histogram(LABELS, num_labels=3, epsilon=1)
    check_reconciled(federation, tmp_path / "state")


def test_policy_is_the_apps_and_holds_for_every_task(begin, tmp_path):
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path, policy=Policy(unit=PrivacyUnit.DEVICE)) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
