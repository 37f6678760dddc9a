"""What a question means: which mechanism noises the answer, and how its bytes read. Both ends use it.

All kinds protect the whole device (unit DEVICE), but for a choice by votes. A choice may turn to any other when the
device's data are replaced, so randomised response at ε costs ε. An accuracy or a loss is a mean over records, of
which there may be one: nothing less than the whole range bounds its change, and how many records there are stays
unsaid. Where each record has a vote, one record changes little: ε then hides any one of them (unit RECORD).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.wire.errors import PayloadMismatch
from device_sdk.wire.messages import FIRST_WITH_QUESTIONS, FIRST_WITH_VOTES, ChoiceBy, QuestionKind
from privacy.budget import NeighbouringRelation
from privacy.errors import InvalidTerms
from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.mechanisms.randomized_response import RandomizedResponse
from privacy.mechanisms.voted_choice import VotedChoice

if TYPE_CHECKING:
    from device_sdk.wire.messages import Exact, ProtocolVersion, Question, SummaryHeader

ChoiceMechanism = RandomizedResponse | VotedChoice
AnswerMechanism = ChoiceMechanism | BoundedScalar


def mechanism_of(question: Question, relation: NeighbouringRelation) -> AnswerMechanism:
    """The mechanism that answers, under the relation of the device's ledger; `InvalidTerms` for an ε near 0."""
    match question.kind:
        case QuestionKind.BEST_MODEL:
            return choice_mechanism(question.choice_by, len(question.models), question.epsilon, relation)
        case QuestionKind.ACCURACY:
            return BoundedScalar(0.0, 1.0, question.epsilon, relation=relation)
        case QuestionKind.LOSS:
            if question.loss_bound is None:
                raise InvalidTerms("a question about a loss needs its bound; nothing was booked")
            return BoundedScalar(0.0, question.loss_bound, question.epsilon, relation=relation)


def choice_mechanism(
    choice_by: ChoiceBy, num_choices: int, epsilon: Exact, relation: NeighbouringRelation
) -> ChoiceMechanism:
    """How a choice among so many is told; `InvalidTerms` for a way that this version does not know."""
    match choice_by:
        case ChoiceBy.RESPONSE:
            return RandomizedResponse(num_choices, epsilon, relation)
        case ChoiceBy.VOTES:
            return VotedChoice(num_choices, epsilon, relation)
        case ChoiceBy.UNKNOWN:
            raise InvalidTerms("this version does not know how that choice is to be made; nothing was booked")


def candour_of(mechanism: ChoiceMechanism) -> float:
    """How often a choice is told rightly: what whoever counts answers must undo."""
    # How often a vote goes wrong depends on the records, and is not known: with many of them, hardly ever.
    return mechanism.probability_of_truth if isinstance(mechanism, RandomizedResponse) else 1.0


def understood_since(question: Question) -> ProtocolVersion:
    """The first version of which a device would understand a question."""
    return FIRST_WITH_QUESTIONS if question.choice_by is ChoiceBy.RESPONSE else FIRST_WITH_VOTES


def read_answer(question: Question, header: SummaryHeader, payload: bytes) -> int | float:
    """What a device answered: an index, or a number that may lie outside its range by the noise.

    `PayloadMismatch` unless this release answers exactly this question, under either relation.
    """
    terms = {term.name: term.value for term in header.terms}
    for relation in NeighbouringRelation:
        mechanism = mechanism_of(question, relation)
        if (header.subject, header.mechanism, terms) == (question.question, mechanism.name, mechanism.terms):
            return _read(mechanism, payload)
    raise PayloadMismatch("this release does not answer the question under its terms; it was not counted")


def _read(mechanism: AnswerMechanism, payload: bytes) -> int | float:
    try:
        answer = mechanism.decode(payload)
    except InvalidTerms as error:
        raise PayloadMismatch("an answer is one number, and these bytes are none; they were not counted") from error
    if not isinstance(mechanism, BoundedScalar) and not 0 <= answer < mechanism.num_choices:
        raise PayloadMismatch("this answer is none of the choices; it was not counted")
    return answer
