"""Device and server read a question alike, and an answer to anything else counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.wire import messages as m
from device_sdk.wire.errors import PayloadMismatch
from device_sdk.wire.question_terms import candour_of, mechanism_of, read_answer, understood_since
from privacy.budget import NeighbouringRelation, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.mechanisms import BoundedScalar, RandomizedResponse, VotedChoice
from privacy.packing import pack
from privacy.randomness import NoiseSource
from tests.device_sdk.wire import examples

CHOICE, ACCURACY, LOSS = examples.QUESTION, examples.ACCURACY_QUESTION, examples.LOSS_QUESTION
VOTES = examples.VOTES_QUESTION
QUESTIONS = {"choice": CHOICE, "accuracy": ACCURACY, "loss": LOSS}
REPLACE = NeighbouringRelation.REPLACE


def header(question: m.Question, relation: NeighbouringRelation = REPLACE) -> m.SummaryHeader:
    mechanism = mechanism_of(question, relation)
    terms = tuple(m.Term(name, value) for name, value in sorted(mechanism.terms.items()))
    return replace(examples.SUMMARY, mechanism=mechanism.name, terms=terms, subject=question.question)


def test_a_choice_is_randomised_and_a_number_bounded():
    assert mechanism_of(CHOICE, REPLACE) == RandomizedResponse(2, "1/2")
    assert mechanism_of(ACCURACY, REPLACE) == BoundedScalar(0.0, 1.0, "0.25")
    assert mechanism_of(LOSS, REPLACE) == BoundedScalar(0.0, 4.0, "0.25")


@pytest.mark.parametrize("relation", NeighbouringRelation)
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_every_answer_protects_the_whole_device_and_costs_what_the_question_says(question, relation):
    cost = mechanism_of(question, relation).cost
    assert cost.unit is PrivacyUnit.DEVICE
    assert cost.relation is relation
    assert cost.pure_micro_epsilon == (int(Fraction(question.epsilon) * 10**6),)


@pytest.mark.parametrize("relation", NeighbouringRelation)
def test_votes_protect_a_record_and_cost_what_the_question_says(relation):
    mechanism = mechanism_of(VOTES, relation)
    assert mechanism == VotedChoice(2, "1/2", relation)
    assert mechanism.cost.unit is PrivacyUnit.RECORD
    assert mechanism.cost.pure_micro_epsilon == (500_000,)


def test_a_way_to_choose_that_is_not_known_makes_no_sense():
    with pytest.raises(InvalidTerms, match="does not know how"):
        mechanism_of(replace(CHOICE, choice_by=m.ChoiceBy.UNKNOWN), REPLACE)


@pytest.mark.parametrize(
    ("question", "version"), [(CHOICE, (1, 1)), (ACCURACY, (1, 1)), (VOTES, (1, 2))], ids=["choice", "number", "votes"]
)
def test_older_devices_are_not_asked_what_they_would_answer_otherwise(question, version):
    assert understood_since(question) == m.ProtocolVersion(*version)


def test_a_randomised_choice_is_true_as_often_as_its_epsilon_says_and_a_vote_is_taken_as_told():
    assert candour_of(RandomizedResponse(2, 1)) == pytest.approx(0.731, abs=0.001)
    assert candour_of(VotedChoice(2, 1)) == 1.0


@given(votes=st.lists(st.integers(0, 1), max_size=80).map(lambda votes: votes + [1] * (len(votes) + 5)))
def test_what_most_records_vote_for_is_read(votes):
    sure = replace(VOTES, epsilon="40")
    payload = mechanism_of(sure, REPLACE).answer(votes, NoiseSource()).payload
    assert read_answer(sure, header(sure), payload) == 1


def test_a_randomised_response_does_not_answer_a_question_by_votes_nor_the_reverse():
    for asked, told in ((VOTES, CHOICE), (CHOICE, VOTES)):
        with pytest.raises(PayloadMismatch, match="does not answer"):
            read_answer(asked, header(replace(told, question=asked.question)), pack([1]))


def test_an_epsilon_too_small_to_be_booked_makes_no_sense():
    with pytest.raises(InvalidTerms, match="at least"):
        mechanism_of(replace(CHOICE, epsilon="0.0000001"), REPLACE)


@pytest.mark.parametrize("relation", NeighbouringRelation)
@given(choice=st.integers(0, 1))
def test_what_is_told_is_read(relation, choice):
    sure = replace(CHOICE, epsilon="40")
    payload = mechanism_of(sure, relation).answer(choice, NoiseSource()).payload
    assert read_answer(sure, header(sure, relation), payload) == choice


@given(share=st.floats(0, 1))
def test_a_share_is_read_to_the_grid(share):
    sure = replace(ACCURACY, epsilon="100000")
    payload = mechanism_of(sure, REPLACE).answer(share, NoiseSource()).payload
    assert read_answer(sure, header(sure), payload) == pytest.approx(share, abs=1 / 1024)


WRONG_HEADERS = {
    "another question's": header(replace(CHOICE, question="q-16")),
    "a cheaper one": header(replace(CHOICE, epsilon="1/4")),
    "among more models": header(replace(CHOICE, models=CHOICE.models * 2)),
    "another mechanism's": header(replace(LOSS, question=CHOICE.question)),
    "without terms": replace(header(CHOICE), terms=()),
}


@pytest.mark.parametrize("wrong", WRONG_HEADERS.values(), ids=WRONG_HEADERS)
def test_the_answer_to_another_question_is_not_counted(wrong):
    assert read_answer(CHOICE, header(CHOICE), pack([1])) == 1
    with pytest.raises(PayloadMismatch, match="does not answer"):
        read_answer(CHOICE, wrong, pack([1]))


@pytest.mark.parametrize("question", [CHOICE, VOTES], ids=["response", "votes"])
@pytest.mark.parametrize("payload", [pack([2]), pack([-1]), pack([1, 1]), b""], ids=repr)
def test_an_answer_that_is_no_choice_is_not_counted(question, payload):
    with pytest.raises(PayloadMismatch, match="not counted"):
        read_answer(question, header(question), payload)
