"""A question is answered once, for its price, between tasks, by a device whose app evaluates models."""

from __future__ import annotations

import time
from collections import OrderedDict

import numpy as np
import pytest
from torch import nn

from device_sdk import Policy, QuestionPolicy
from device_sdk.trainers import NumpyTrainer, TorchTrainer
from device_sdk.trainers.protocol import go_on
from device_sdk.wire.messages import ChoiceBy, DeclineReason, QuestionKind, SummaryHeader, UpdateHeader
from privacy import PrivacyBudget, PrivacyUnit
from privacy.ledger.entries import Reserved
from tests.device_sdk.runtime.asking import CHOICE, MODELS, WIDE_BUDGET, answered, like_the_second
from tests.device_sdk.runtime.federation import entries_of
from tests.device_sdk.runtime.trainers import INPUTS, LABELS, run_until, trainer

pytestmark = pytest.mark.integration

ALL_TWOS = np.full(30, 2)


def test_a_device_tells_which_model_suits_it_how_often_one_is_right_and_its_loss(ask, tmp_path):
    asking = ask(
        {"models": MODELS, "epsilon": "40"},
        {"models": MODELS[2:], "epsilon": "400"},
        {"models": MODELS[:1], "epsilon": "400", "kind": QuestionKind.LOSS, "loss_bound": 2.0},
    )
    policy = Policy(questions=QuestionPolicy(loss=True))
    with asking.federation.enrolled(tmp_path, budget=WIDE_BUDGET, policy=policy) as device:
        run_until(device, asking.federation, answered(3), NumpyTrainer(INPUTS, ALL_TWOS))
    (choice, accuracy, loss) = asking.answers
    assert choice == ("q-1", 2)
    assert accuracy == ("q-2", pytest.approx(1.0, abs=0.1))
    assert loss == ("q-3", pytest.approx(2.0, abs=0.2))  # log(2 + e³) is more
    asking.check_reconciled(tmp_path / "state")


def test_every_answer_is_booked_for_its_price_as_a_question(ask, tmp_path):
    asking = ask(CHOICE, {"models": MODELS[:1], "epsilon": "0.25"})
    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, answered(2), trainer())
        assert device.status().ledger.spent.pure_micro_epsilon == 750_000
        assert device.status().ledger.spent.mu_squared_nano == 0
    spends = [event for event in entries_of(tmp_path / "state") if isinstance(event, Reserved)]
    assert [(spend.mechanism, spend.purpose) for spend in spends] == [
        ("randomized_response", "question"),
        ("bounded_scalar", "question"),
    ]


VOTES = CHOICE | {"choice_by": ChoiceBy.VOTES}
RECORD_BUDGET = PrivacyBudget(epsilon=100, delta=1e-6, training=PrivacyUnit.RECORD, pure_epsilon=90)


def torch_trainer(labels):
    model = nn.Sequential(OrderedDict(dense1=nn.Linear(2, 3)))
    return TorchTrainer(model, nn.CrossEntropyLoss(), (INPUTS, labels))


@pytest.mark.parametrize("made", [lambda labels: NumpyTrainer(INPUTS, labels), torch_trainer], ids=["numpy", "torch"])
def test_the_records_of_a_device_vote_and_the_ledger_has_it_by_its_name(ask, tmp_path, made):
    asking = ask(VOTES | {"epsilon": "20"}, VOTES | {"epsilon": "20"})
    with asking.federation.enrolled(tmp_path, budget=RECORD_BUDGET) as device:
        run_until(device, asking.federation, answered(2), made(np.array([1] * 16 + [2] * 14)))
        assert device.status().ledger.spent.pure_micro_epsilon == 40_000_000
    assert asking.answers == [("q-1", 1), ("q-2", 1)]
    spends = [event for event in entries_of(tmp_path / "state") if isinstance(event, Reserved)]
    assert [(spend.mechanism, spend.purpose) for spend in spends] == [("voted_choice", "question")] * 2
    asking.check_reconciled(tmp_path / "state")


def test_a_device_whose_budget_hides_all_of_it_declines_votes_and_pays_nothing(ask, tmp_path):
    asking = ask(VOTES, CHOICE)
    with asking.federation.enrolled(tmp_path, budget=WIDE_BUDGET) as device:
        run_until(device, asking.federation, answered(1), trainer())
        assert device.status().ledger.spent.pure_micro_epsilon == 500_000
    assert asking.declines == [("q-1", DeclineReason.TERMS)]
    assert [name for name, _ in asking.answers] == ["q-2"]


def test_an_app_with_its_own_loop_lets_its_records_vote(ask, tmp_path):
    asking = ask(VOTES | {"epsilon": "20"}, rounds=1)

    def losses(weights, between_batches):
        return np.array([np.argmax(weights["dense1.bias"]) != 1] * 30, dtype=float)

    with asking.federation.enrolled(tmp_path, budget=RECORD_BUDGET) as device:
        for task in device.tasks(timeout_seconds=30, record_losses=losses):
            task.decline()
            break
    assert asking.answers == [("q-1", 1)]


def test_what_is_told_is_not_always_so(ask, tmp_path):
    asking = ask(*[CHOICE] * 25)
    with asking.federation.enrolled(tmp_path, budget=WIDE_BUDGET) as device:
        run_until(device, asking.federation, answered(25), NumpyTrainer(INPUTS, ALL_TWOS))
    assert {told for _, told in asking.answers} > {2}  # the truth each time has a chance of one in 10⁸
    asking.check_reconciled(tmp_path / "state")


def test_an_app_with_its_own_loop_answers_with_a_function_of_its_own(ask, tmp_path):
    asking = ask({"models": MODELS, "epsilon": "40"}, rounds=1)
    with asking.federation.enrolled(tmp_path, budget=WIDE_BUDGET) as device:
        for task in device.tasks(rounds=1, timeout_seconds=30, evaluate=like_the_second):
            task.submit(task.weights)
    assert asking.answers == [("q-1", 1)]
    asking.check_reconciled(tmp_path / "state")


def test_an_app_that_does_not_evaluate_declines(ask, tmp_path):
    asking = ask(CHOICE, rounds=1)
    with asking.federation.enrolled(tmp_path) as device:
        for task in device.tasks(rounds=1, timeout_seconds=30):
            task.submit(task.weights)
    assert asking.declines == [("q-1", DeclineReason.MODEL)]
    assert asking.answers == []


def test_a_question_that_comes_while_training_waits_until_the_update_is_sent(ask, tmp_path):
    asking = ask(rounds=1)

    class AskedMeanwhile(NumpyTrainer):
        def train(self, weights, settings, between_batches=go_on):
            asking.ask(device.status().device, MODELS)
            time.sleep(0.2)
            return super().train(weights, settings, between_batches)

    with asking.federation.enrolled(tmp_path) as device:
        run_until(device, asking.federation, answered(2), AskedMeanwhile(INPUTS, LABELS))
    kinds = [type(header) for _, header, _ in asking.federation.server.desk.accepted]
    assert kinds == [UpdateHeader, SummaryHeader]
