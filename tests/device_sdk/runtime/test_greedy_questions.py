"""A server whose questions ask for too much, again, or without end is declined, and learns no more than that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.trainers import ModelMismatch
from device_sdk.wire.messages import ChoiceBy, DeclineReason, QuestionKind
from tests.device_sdk.runtime.asking import CHOICE, MODELS, Evaluates, answered
from tests.device_sdk.runtime.federation import entries_of
from tests.device_sdk.runtime.trainers import run_until, trainer

pytestmark = pytest.mark.integration


def test_a_trainer_that_finds_the_model_strange_declines_it(ask, tmp_path):
    asking = ask(CHOICE)

    def strange(weights, between_batches):
        raise ModelMismatch("not mine")

    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, Evaluates(strange))
        assert device.status().ledger.sequence == 0
    assert asking.declines == [("q-1", DeclineReason.MODEL)]


OTHER_SHAPE = {"dense1.weight": np.zeros((3, 5), np.float32), "dense1.bias": np.zeros(3, np.float32)}
GREEDY = {
    "an epsilon beyond the budget": ({**CHOICE, "epsilon": "2.1"}, DeclineReason.TERMS),
    "an epsilon beyond all reason": ({**CHOICE, "epsilon": "9" * 20}, DeclineReason.TERMS),
    "a loss": ({"models": MODELS[:1], "kind": QuestionKind.LOSS, "loss_bound": 1.0}, DeclineReason.TERMS),
    "another shape": ({"models": [OTHER_SHAPE]}, DeclineReason.MODEL),
    "equal models": ({"models": MODELS[:1] * 2}, DeclineReason.MODEL),
    "votes where the device is hidden": ({**CHOICE, "choice_by": ChoiceBy.VOTES}, DeclineReason.TERMS),
    "a way to choose of a newer version": ({**CHOICE, "choice_by": ChoiceBy.UNKNOWN}, DeclineReason.TERMS),
}


@pytest.mark.parametrize(("asked", "heard"), GREEDY.values(), ids=GREEDY)
def test_a_server_that_asks_for_too_much_is_declined_and_learns_nothing(ask, tmp_path, asked, heard):
    asking = ask(asked)
    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, trainer())
    assert asking.declines == [("q-1", heard)]
    assert len(entries_of(tmp_path / "state")) == 1


def test_another_devices_question_is_declined(ask, tmp_path):
    asking = ask()
    asking.federation.server.desk.answer = lambda name, _: replace(asking.ask(name, MODELS), device="f" * 32)
    asking.federation.server.gateway.push = lambda *_: None
    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, lambda desk: desk.declines, trainer())
    assert asking.declines == [("q-1", DeclineReason.NOT_NOW)]


@pytest.mark.parametrize("remembered", [1000, 1], ids=["by the journal", "by the ledger alone"])
def test_a_question_that_was_answered_is_not_answered_again(ask, tmp_path, monkeypatch, remembered):
    monkeypatch.setattr("device_sdk.state.MOST_REMEMBERED", remembered)
    asking = ask(CHOICE, CHOICE)
    desk = asking.federation.server.desk
    with asking.federation.enrolled(tmp_path) as device:
        run = device.start(trainer())
        desk.wait_for(answered(2))
        asking.federation.server.gateway.push(device.status().device, asking.questions["q-1"])
        desk.wait_for(lambda desk: desk.declines)
        assert run.stop(20)
        assert run.error is None
        assert device.status().rounds == {}
        assert device.status().ledger.spent.pure_micro_epsilon == 1_000_000
    assert asking.declines == [("q-1", DeclineReason.NOT_NOW)]
    asking.check_reconciled(tmp_path / "state")


def test_a_flood_of_questions_costs_what_the_policy_allows_and_training_goes_on(ask, tmp_path):
    asking = ask(*[CHOICE] * 6, rounds=1)
    with asking.federation.enrolled(tmp_path, questions={"epsilon_in_all": 1.0}) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
        assert device.status().ledger.spent.pure_micro_epsilon == 1_000_000
    assert len(asking.answers) == 2
    assert {reason for _, reason in asking.declines} == {DeclineReason.NOT_NOW}
    assert len(asking.declines) == 4
    asking.check_reconciled(tmp_path / "state")


def test_without_a_limit_a_flood_uses_up_its_share_and_no_more(ask, tmp_path):
    asking = ask(*[CHOICE] * 6, rounds=1)
    with asking.federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
        left = device.status().ledger.left
        assert left.pure_micro_epsilon == 0
        assert left.mu_squared_nano > 0
    assert len(asking.answers) == 4
