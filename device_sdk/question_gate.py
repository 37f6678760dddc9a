"""Looks at every question before this device downloads, books or reads anything for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.policy import Reason, TaskRefused, check_budget, check_deadline, check_model
from device_sdk.wire.messages import ChoiceBy, QuestionKind
from device_sdk.wire.question_terms import AnswerMechanism, mechanism_of
from privacy.budget import MICRO, PrivacyUnit, rounded_down
from privacy.errors import InvalidTerms
from privacy.exact import as_written
from privacy.ledger.entries import Reserved

if TYPE_CHECKING:
    from device_sdk.policy import Abilities, Gatekeeper
    from device_sdk.trainers.protocol import Evaluate, RecordLosses
    from device_sdk.wire.messages import Question
    from privacy.budget import PrivacyCost
    from privacy.ledger import Ledger

PURPOSE = "question"


@dataclass(frozen=True)
class QuestionGate:
    """What a `Gatekeeper` is for tasks: same device, same policy, same ledger."""

    keeper: Gatekeeper

    def admit(self, question: Question, abilities: Abilities) -> AnswerMechanism:
        """The mechanism that will noise the answer to a question; `TaskRefused` if there will be none."""
        if question.device != self.keeper.device:
            raise TaskRefused(Reason.ANOTHER_DEVICE)
        if self.keeper.is_known(question.question):
            raise TaskRefused(Reason.REPLAYED)
        policy = self.keeper.policy.questions
        self.keeper.check_number(PURPOSE, policy.most_answers_per_day, policy.most_answers)
        return self.admit_again(question, abilities, booked=False)

    def admit_again(self, question: Question, abilities: Abilities, *, booked: bool) -> AnswerMechanism:
        """The same for a question that was admitted before, perhaps by another version of the app."""
        if not self._answers(question.kind):
            raise TaskRefused(Reason.KIND)
        check_deadline(question.deadline_seconds, self.keeper.policy.limits)
        self._check_models(question, abilities)
        try:
            mechanism = mechanism_of(question, self.keeper.ledger.budget.relation)
        except InvalidTerms as error:
            raise TaskRefused(Reason.TERMS) from error
        self._check_unit(mechanism.cost.unit)
        if not booked:
            self._check_cost(mechanism.cost)
        return mechanism

    def _answers(self, kind: QuestionKind) -> bool:
        policy = self.keeper.policy.questions
        return {
            QuestionKind.BEST_MODEL: policy.best_model,
            QuestionKind.ACCURACY: policy.accuracy,
            QuestionKind.LOSS: policy.loss,
        }[kind]

    def _check_unit(self, unit: PrivacyUnit) -> None:
        """Refuse to hide single records where the app, or the budget it made, wants the whole device hidden."""
        if unit is PrivacyUnit.DEVICE:
            return
        if self.keeper.policy.unit is PrivacyUnit.DEVICE:
            raise TaskRefused(Reason.UNIT)
        if not self.keeper.ledger.budget.renyi_share:
            raise TaskRefused(Reason.NO_SHARE)

    def _check_models(self, question: Question, abilities: Abilities) -> None:
        if question.choice_by is ChoiceBy.VOTES:
            record_losses_of(abilities)
        else:
            evaluation_of(abilities)
        sizes = {model.blob.sha256: model.blob.size_bytes for model in question.models}
        if question.kind is QuestionKind.BEST_MODEL and len(sizes) == 1:
            raise TaskRefused(Reason.ONE_MODEL)
        if sum(sizes.values()) > self.keeper.policy.questions.most_download_bytes:
            raise TaskRefused(Reason.MODEL_SIZE)
        for model in question.models:
            check_model(model, self.keeper.policy, abilities)

    def _check_cost(self, cost: PrivacyCost) -> None:
        policy, ledger = self.keeper.policy.questions, self.keeper.ledger
        asked = sum(cost.pure_micro_epsilon)
        if policy.epsilon_per_answer is not None and asked > _micro(policy.epsilon_per_answer):
            raise TaskRefused(Reason.ANSWER_COST)
        if policy.epsilon_in_all is not None and asked + _booked(ledger) > _micro(policy.epsilon_in_all):
            raise TaskRefused(Reason.ANSWERS_COST)
        check_budget(cost, ledger, self.keeper.server)


def evaluation_of(abilities: Abilities) -> Evaluate:
    """How the app evaluates models; `TaskRefused` if it does not."""
    if abilities.evaluate is None:
        raise TaskRefused(Reason.NO_EVALUATION)
    return abilities.evaluate


def record_losses_of(abilities: Abilities) -> RecordLosses:
    """How the app evaluates models on each record; `TaskRefused` if it does not."""
    if abilities.record_losses is None:
        raise TaskRefused(Reason.NO_VOTES)
    return abilities.record_losses


def _micro(epsilon: float) -> int:
    return rounded_down(as_written(epsilon, "epsilon"), MICRO)


def _booked(ledger: Ledger) -> int:
    """What was ever booked for answers, sent or not, in micro-ε."""
    events = [entry.event for entry in ledger.entries()]
    spends = [event.spend for event in events if isinstance(event, Reserved) and event.purpose == PURPOSE]
    return sum(spend.pure_micro_epsilon for spend in spends)
