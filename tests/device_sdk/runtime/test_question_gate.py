"""A question is refused for one named reason, before anything is downloaded or booked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_sdk.policy import Abilities, Gatekeeper, Policy, Reason, TaskRefused
from device_sdk.question_gate import PURPOSE, QuestionGate
from device_sdk.question_policy import QuestionPolicy
from device_sdk.tally import Taken
from device_sdk.trainers import Evaluation, ModelMismatch
from device_sdk.wire.messages import (
    Blob,
    ChoiceBy,
    DeclineReason,
    Dtype,
    ModelReference,
    Question,
    QuestionKind,
    TensorSpec,
)
from device_sdk.wire.question_terms import mechanism_of
from privacy import Ledger, LedgerKeys, PrivacyBudget, PrivacyUnit, RandomizedResponse, Request
from privacy.mechanisms import VotedChoice

DEVICE, SERVER = "0123456789abcdef" * 2, "covey-server"
TENSORS = (TensorSpec("w", Dtype.F32, (3, 2)), TensorSpec("b", Dtype.F32, (3,)))
ONE, OTHER = (ModelReference(1, Blob(bytes([number]) * 32, 1000), TENSORS) for number in (1, 2))
CHOICE = Question("q-1", DEVICE, QuestionKind.BEST_MODEL, (ONE, OTHER), "1/2", 60.0)
ACCURACY = replace(CHOICE, kind=QuestionKind.ACCURACY, models=(ONE,))
LOSS = replace(ACCURACY, kind=QuestionKind.LOSS, loss_bound=4.0)
VOTES = replace(CHOICE, choice_by=ChoiceBy.VOTES)
ABLE = Abilities(
    evaluate=lambda weights, between_batches: Evaluation(0.0, 1.0),
    record_losses=lambda weights, between_batches: np.zeros(3),
)


def of_another_model(shapes):
    raise ModelMismatch("not mine")


@pytest.fixture
def gate(tmp_path):
    budget = PrivacyBudget(epsilon=8, delta=1e-6, pure_epsilon=2)
    with Ledger.open(tmp_path / "ledger", LedgerKeys.generate(), budget) as ledger:
        yield QuestionGate(Gatekeeper(DEVICE, SERVER, Policy(), ledger, lambda name: name == "q-0"))


def verdict(gate, question, *, abilities=ABLE, model_bytes=1 << 30, **policy):
    """The reason for refusing a question; none if it is admitted."""
    agreed = Policy(most_model_bytes=model_bytes, questions=QuestionPolicy(**policy))
    keeper = replace(gate.keeper, policy=agreed)
    before = keeper.ledger.status()
    try:
        QuestionGate(keeper).admit(question, abilities)
    except TaskRefused as refusal:
        return refusal.reason
    finally:
        assert keeper.ledger.status() == before
    return None


def book(gate, question):
    mechanism = mechanism_of(question, gate.keeper.ledger.budget.relation)
    request = Request(SERVER, PURPOSE, question.question)
    gate.keeper.ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)


def test_an_honest_question_is_admitted(gate):
    assert verdict(gate, CHOICE) is verdict(gate, ACCURACY) is verdict(gate, LOSS, loss=True) is None
    assert gate.admit(CHOICE, ABLE) == RandomizedResponse(2, "1/2")


WHOLE = replace(ONE, tensors=(TensorSpec("w", Dtype.I64, (3, 2)),))
REFUSED = [
    (Reason.ANOTHER_DEVICE, replace(CHOICE, device="f" * 32), {}),
    (Reason.REPLAYED, replace(CHOICE, question="q-0"), {}),
    (Reason.KIND, LOSS, {}),
    (Reason.KIND, CHOICE, {"best_model": False}),
    (Reason.KIND, ACCURACY, {"accuracy": False}),
    (Reason.NO_EVALUATION, CHOICE, {"abilities": Abilities()}),
    (Reason.NO_VOTES, VOTES, {"abilities": replace(ABLE, record_losses=None)}),
    (Reason.NO_SHARE, VOTES, {}),  # its budget hides the whole device
    (Reason.KIND, VOTES, {"best_model": False}),
    (Reason.TERMS, replace(CHOICE, choice_by=ChoiceBy.UNKNOWN), {}),
    (Reason.ONE_MODEL, replace(CHOICE, models=(ONE, ONE)), {}),
    (Reason.MODEL, CHOICE, {"abilities": replace(ABLE, check_model=of_another_model)}),
    (Reason.MODEL, replace(ACCURACY, models=(WHOLE,)), {}),
    (Reason.MODEL_SIZE, CHOICE, {"model_bytes": 999}),
    (Reason.MODEL_SIZE, CHOICE, {"most_download_bytes": 1999}),
    (Reason.TERMS, replace(CHOICE, epsilon="0.0000001"), {}),
    (Reason.ANSWER_COST, CHOICE, {"epsilon_per_answer": 0.499}),
    (Reason.ANSWERS_COST, CHOICE, {"epsilon_in_all": 0.499}),
    (Reason.WHOLE_BUDGET, replace(CHOICE, epsilon="2.000001"), {}),
    (Reason.WHOLE_BUDGET, replace(CHOICE, epsilon="99999999999999999999"), {}),
    (Reason.WORK, replace(CHOICE, deadline_seconds=7 * 86_400.0), {}),
]


@pytest.mark.parametrize(("reason", "question", "policy"), REFUSED, ids=[reason.name for reason, *_ in REFUSED])
def test_a_question_is_refused_for_its_reason(gate, reason, question, policy):
    assert verdict(gate, question, **policy) is reason


@pytest.fixture
def record_gate(tmp_path):
    budget = PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD, pure_epsilon=2)
    with Ledger.open(tmp_path / "records", LedgerKeys.generate(), budget) as ledger:
        yield QuestionGate(Gatekeeper(DEVICE, SERVER, Policy(), ledger, lambda name: False))


def test_records_may_vote_where_the_budget_hides_records(record_gate):
    assert record_gate.admit(VOTES, ABLE) == VotedChoice(2, "1/2")
    assert record_gate.admit(VOTES, Abilities(record_losses=ABLE.record_losses)) == VotedChoice(2, "1/2")


def test_records_do_not_vote_where_the_app_wants_the_device_hidden(record_gate):
    strict = replace(record_gate.keeper, policy=Policy(unit=PrivacyUnit.DEVICE))
    with pytest.raises(TaskRefused) as refusal:
        QuestionGate(strict).admit(VOTES, ABLE)
    assert refusal.value.reason is Reason.UNIT
    assert refusal.value.heard is DeclineReason.TERMS
    assert QuestionGate(strict).admit(CHOICE, ABLE) == RandomizedResponse(2, "1/2")


@pytest.mark.parametrize(
    ("reason", "epsilon", "policy"),
    [
        (Reason.ANSWER_COST, "1/2", {"epsilon_per_answer": 0.499}),
        (Reason.ANSWERS_COST, "1/2", {"epsilon_in_all": 0.499}),
        (Reason.WHOLE_BUDGET, "2.000001", {}),
    ],
)
def test_votes_cost_no_more_than_the_policy_says(record_gate, reason, epsilon, policy):
    assert verdict(record_gate, replace(VOTES, epsilon=epsilon), **policy) is reason


def test_what_just_fits_is_admitted(gate):
    assert verdict(gate, CHOICE, epsilon_per_answer=0.5, epsilon_in_all=0.5, most_download_bytes=2000) is None
    assert verdict(gate, replace(CHOICE, epsilon="2")) is None


def test_equal_models_among_others_are_downloaded_once(gate):
    assert verdict(gate, replace(CHOICE, models=(ONE, OTHER, ONE)), most_download_bytes=2000) is None


def test_answers_are_counted_whether_or_not_they_were_sent_and_histograms_are_not(gate):
    gate.keeper.ledger.reserve("other", {}, RandomizedResponse(2, 1).cost, Request(SERVER, "summary", "1"))
    book(gate, CHOICE)
    again = replace(CHOICE, question="q-2")
    assert verdict(gate, again, epsilon_in_all=1.0) is None
    assert verdict(gate, again, epsilon_in_all=0.999) is Reason.ANSWERS_COST


def test_what_is_booked_may_be_answered_after_all(gate):
    for number in range(4):
        book(gate, replace(CHOICE, question=f"q-{number + 1}"))
    assert verdict(gate, replace(CHOICE, question="q-9")) is Reason.BUDGET
    assert gate.admit_again(CHOICE, ABLE, booked=True) == RandomizedResponse(2, "1/2")


@given(epsilons=st.lists(st.fractions("1/1000000", 1, max_denominator=10**6).map(str), max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_no_flood_of_questions_costs_more_than_the_policy_says(tmp_path_factory, epsilons):
    budget = PrivacyBudget(epsilon=8, delta=1e-6, pure_epsilon=2)
    policy = Policy(questions=QuestionPolicy(epsilon_in_all=0.75))
    with Ledger.open(tmp_path_factory.mktemp("ledger"), LedgerKeys.generate(), budget) as ledger:
        gate = QuestionGate(Gatekeeper(DEVICE, SERVER, policy, ledger, lambda name: False))
        for number, epsilon in enumerate(epsilons):
            question = replace(CHOICE, question=f"q-{number}", epsilon=epsilon)
            try:
                gate.admit(question, ABLE)
            except TaskRefused:
                continue
            book(gate, question)
        assert ledger.status().spent.pure_micro_epsilon <= 750_000
        assert ledger.status().spent.mu_squared_nano == 0


@pytest.mark.parametrize("settings", [{"epsilon_per_answer": 0.0}, {"epsilon_in_all": -1}, {"most_answers": 0}])
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        QuestionPolicy(**settings)


def test_a_server_asks_as_many_questions_as_it_may_in_a_day_and_in_all(gate):
    few = {"most_answers_per_day": 3, "most_answers": 5}
    for taken, reason in ((Taken(9, 2, 4), None), (Taken(9, 3, 4), Reason.MANY_TODAY), (Taken(9, 0, 5), Reason.MANY)):
        keeper = replace(gate.keeper, taken=lambda purpose, taken=taken: taken)
        assert verdict(QuestionGate(keeper), CHOICE, **few) is reason


def test_the_server_hears_of_terms_as_terms_of_models_as_models_and_of_what_was_spent_nothing():
    heard = {reason: TaskRefused(reason).heard for reason, *_ in REFUSED}
    terms = (Reason.KIND, Reason.TERMS, Reason.NO_SHARE, Reason.ANSWER_COST, Reason.WHOLE_BUDGET, Reason.WORK)
    assert {heard[reason] for reason in terms} == {DeclineReason.TERMS}
    assert heard[Reason.ANSWERS_COST] is DeclineReason.NOT_NOW
    models = (Reason.MODEL, Reason.MODEL_SIZE, Reason.NO_EVALUATION, Reason.NO_VOTES, Reason.ONE_MODEL)
    assert {heard[reason] for reason in models} == {DeclineReason.MODEL}
    assert {heard[reason] for reason in (Reason.REPLAYED, Reason.ANOTHER_DEVICE)} == {DeclineReason.NOT_NOW}
