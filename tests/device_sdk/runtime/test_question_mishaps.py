"""What goes wrong with a question costs time, or the answer; never a second spend, and never a word about data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from device_sdk import Conditions
from device_sdk.trainers import Evaluation, EvaluationFailed
from device_sdk.wire.messages import DeclineReason
from privacy import RandomizedResponse, Request
from privacy.ledger.entries import Reserved
from tests.device_sdk.runtime.asking import CHOICE, MODELS, WIDE_BUDGET, Evaluates, answered, like_the_second
from tests.device_sdk.runtime.federation import entries_of
from tests.device_sdk.runtime.trainers import run_until, trainer

pytestmark = pytest.mark.integration


def test_an_evaluation_that_raises_is_answered_all_the_same_and_told_to_the_app_alone(ask, tmp_path):
    asking = ask(CHOICE)

    def fails(weights, between_batches):
        if np.argmax(weights["dense1.bias"]) == 1:
            raise ValueError("record 17 holds 424242")
        return Evaluation(1.0, 0.5)

    device = asking.federation.enrolled(tmp_path)
    run_until(device, asking.federation, answered(1), Evaluates(fails))
    with pytest.raises(EvaluationFailed, match="ValueError") as failure:
        device.close()
    assert "424242" not in str(failure.value)
    assert [name for name, _ in asking.answers] == ["q-1"]
    assert asking.declines == []
    asking.check_reconciled(tmp_path / "state")


def test_a_model_whose_evaluation_raises_is_not_the_best(ask, tmp_path):
    asking = ask({"models": MODELS, "epsilon": "40"})

    def fails(weights, between_batches):
        if np.argmax(weights["dense1.bias"]) == 0:
            raise ValueError
        return Evaluation(1.0, 0.5)

    device = asking.federation.enrolled(tmp_path, budget=WIDE_BUDGET)
    run_until(device, asking.federation, answered(1), Evaluates(fails))
    with pytest.raises(EvaluationFailed):
        device.close()
    assert asking.answers == [("q-1", 1)]


def test_a_connection_that_is_lost_while_evaluating_costs_time_alone(ask, tmp_path):
    asking = ask(CHOICE)
    cuts: list[int] = []

    def cuts_the_line(weights, between_batches):
        if not cuts:
            cuts.append(1)
            asking.federation.server.restart_gateway()
        return like_the_second(weights)

    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, answered(1), Evaluates(cuts_the_line))
    assert len(asking.answers) == 1
    asking.check_reconciled(tmp_path / "state")


class Pauses:
    """An evaluation that goes on until it is stopped, and says when it has begun."""

    def __init__(self):
        self.begun = threading.Event()

    def __call__(self, weights, between_batches):
        while True:
            between_batches()
            self.begun.set()
            time.sleep(0.005)


def stopped_half_way(device):
    pauses = Pauses()
    run = device.start(Evaluates(pauses))
    assert pauses.begun.wait(20)
    assert run.stop(20)
    assert run.error is None
    assert device.status().rounds == {"accepted": 1}


def test_a_question_that_was_stopped_is_answered_by_the_next_run(ask, tmp_path):
    asking = ask(CHOICE)
    with asking.federation.enrolled(tmp_path) as device:
        stopped_half_way(device)
        run_until(device, asking.federation, answered(1), Evaluates(like_the_second))
    assert asking.declines == []
    asking.check_reconciled(tmp_path / "state")


def test_a_question_that_is_late_after_a_restart_is_given_up_and_costs_nothing(ask, tmp_path):
    asking = ask({**CHOICE, "deadline_seconds": 1.0})
    with asking.federation.enrolled(tmp_path) as device:
        stopped_half_way(device)
        time.sleep(1.1)
        run_until(device, asking.federation, lambda desk: desk.declines, Evaluates(like_the_second))
        assert device.status().rounds == {}
        assert device.status().ledger.sequence == 0
    assert asking.declines == [("q-1", DeclineReason.NOT_NOW)]


def test_an_evaluation_that_outlasts_its_time_is_stopped_and_answered_for(ask, tmp_path):
    asking = ask({**CHOICE, "deadline_seconds": 2.0})
    device = asking.federation.enrolled(tmp_path)
    run_until(device, asking.federation, answered(1), Evaluates(Pauses()))
    with pytest.raises(EvaluationFailed, match="longer than it may"):
        device.close()
    assert asking.declines == []
    asking.check_reconciled(tmp_path / "state")


def test_a_question_that_was_begun_too_often_is_given_up(ask, tmp_path):
    asking = ask(CHOICE)
    with asking.federation.enrolled(tmp_path, rounds={"most_attempts": 1}) as device:
        stopped_half_way(device)
        run_until(device, asking.federation, lambda desk: desk.declines, Evaluates(like_the_second))
    assert asking.declines == [("q-1", DeclineReason.NOT_NOW)]


def test_a_policy_that_has_changed_since_is_heeded(ask, tmp_path):
    asking = ask(CHOICE)
    with asking.federation.enrolled(tmp_path) as device:
        stopped_half_way(device)
    with asking.federation.open(tmp_path, questions={"best_model": False}) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, Evaluates(like_the_second))
    assert asking.declines == [("q-1", DeclineReason.TERMS)]
    assert len(entries_of(tmp_path / "state")) == 1


LOST: dict[str, tuple[Callable[[dict[bytes, bytes]], dict[bytes, bytes]], DeclineReason]] = {
    "gone": (lambda blobs: {}, DeclineReason.NOT_NOW),
    "altered": (lambda blobs: {sha256: bytes(len(body)) for sha256, body in blobs.items()}, DeclineReason.MODEL),
}


@pytest.mark.parametrize(("lose", "heard"), LOST.values(), ids=LOST)
def test_a_model_that_is_gone_or_altered_ends_its_question(ask, tmp_path, lose, heard):
    asking = ask(CHOICE)

    def lose_the_rest(weights, between_batches):
        asking.federation.server.desk.blobs = lose(asking.federation.server.desk.blobs)
        return like_the_second(weights)

    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, Evaluates(lose_the_rest))
        assert device.status().ledger.sequence == 0
    assert asking.declines == [("q-1", heard)]


def test_a_question_that_comes_at_a_bad_moment_is_declined(ask, tmp_path):
    asking = ask()
    plugged_in = threading.Event()
    plugged_in.set()

    def unplug_and_ask(name, _):
        plugged_in.clear()
        asking.ask(name, MODELS)

    asking.federation.server.desk.answer = unplug_and_ask
    conditions = Conditions(charging=plugged_in.is_set)
    with asking.federation.enrolled(tmp_path, conditions=conditions) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, trainer())
        assert device.status().ledger.sequence == 0
    assert asking.declines == [("q-1", DeclineReason.NOT_NOW)]


def test_a_budget_that_was_spent_elsewhere_meanwhile_is_not_overspent(ask, tmp_path):
    asking = ask(CHOICE)

    def spend_everything(weights, between_batches):
        cost = RandomizedResponse(2, 2).cost
        device._ledger.reserve("randomized_response", {}, cost, Request("another server", "summary", "1"))
        return like_the_second(weights)

    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, Evaluates(spend_everything))
        assert device.status().rounds == {}
    assert asking.declines == [("q-1", DeclineReason.NOT_NOW)]
    spends = [event for event in entries_of(tmp_path / "state") if isinstance(event, Reserved)]
    assert [spend.server for spend in spends] == ["another server"]


def test_an_answer_that_could_not_be_sent_is_sent_by_the_next_run_the_same_bytes(ask, tmp_path):
    asking = ask(CHOICE)
    server = asking.federation.server

    def fails_without_a_line(weights, between_batches):
        if np.argmax(weights["dense1.bias"]) == 2:
            server.stop_gateway()
            raise ValueError
        return like_the_second(weights)

    device = asking.federation.enrolled(tmp_path)
    device.run(Evaluates(fails_without_a_line), timeout_seconds=3)
    assert device.status().rounds == {"released": 1}
    spent = device.status().ledger.spent
    server.restart_gateway()
    run_until(device, asking.federation, answered(1), Evaluates(like_the_second))
    assert device.status().ledger.spent == spent
    with pytest.raises(EvaluationFailed):
        device.close()
    asking.check_reconciled(tmp_path / "state")
