"""From a question's arrival to its answer: taken or declined, its models looked at, one number noised and sent.

    question -> (policy) accept -> evaluate model after model -> book -> noise, store -> upload

It is the path of a round, in the same journal, and can be taken up again at every arrow: one spend, one answer, the
same bytes. On the wire the answer is a summary, and the outbox sends it like one, on a schedule as updates are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from device_sdk.errors import OutOfOrder
from device_sdk.evaluating import Evaluating, Polling
from device_sdk.failures import Failures, in_evaluation
from device_sdk.outbox import summary_order
from device_sdk.policy import Reason, TaskRefused
from device_sdk.question_gate import PURPOSE, QuestionGate, evaluation_of, record_losses_of
from device_sdk.round_record import UNFINISHED, Kind
from device_sdk.trainers.errors import TrainingStopped
from device_sdk.unfailing import Unfailing
from device_sdk.wire.codec import decode, encode
from device_sdk.wire.errors import Cancelled, ConnectionLost
from device_sdk.wire.messages import ChoiceBy, Decline, Question, QuestionKind
from privacy.canonical import canonical, parse
from privacy.errors import BudgetExhausted
from privacy.randomness import NoiseSource
from privacy.release import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_sdk.answer_schedule import AnswerSchedule, Timetable
    from device_sdk.conditions import Conditions
    from device_sdk.config import DeviceConfig
    from device_sdk.kept import Kept
    from device_sdk.outbox import Outbox
    from device_sdk.pauses import Pause, Pauses
    from device_sdk.policy import Abilities
    from device_sdk.round_record import Round
    from device_sdk.trainers.protocol import Evaluation
    from device_sdk.wire.channel import Channel, Session
    from device_sdk.wire.question_terms import AnswerMechanism


def order_of(question: Question, mechanism: AnswerMechanism) -> bytes:
    """What the journal keeps of a question: what a summary's header needs, and the question itself."""
    return canonical({**parse(summary_order(mechanism, question.question)), "question": encode(question).hex()})


def question_of(entry: Round) -> Question | None:
    """The question that a round answers; none if it is about something else."""
    asked = parse(entry.order).get("question") if entry.kind is Kind.SUMMARY else None
    return None if asked is None else decode(Question, bytes.fromhex(asked))


def private_answer(question: Question, evaluations: Sequence[Evaluation]) -> int | float:
    """What would be told without noise: of models that do equally well, the first."""
    match question.kind:
        case QuestionKind.BEST_MODEL:
            losses = [evaluation.loss for evaluation in evaluations]
            return losses.index(min(losses))
        case QuestionKind.ACCURACY:
            return evaluations[0].correct_share
        case QuestionKind.LOSS:
            return evaluations[0].loss


class Questions:
    """The questions of one device."""

    def __init__(
        self,
        kept: Kept,
        channel: Channel,
        config: DeviceConfig,
        *,
        gate: QuestionGate,
        conditions: Conditions,
        outbox: Outbox,
        pauses: Pauses,
        schedule: AnswerSchedule,
        failures: Failures,
        note: Callable[[str, Reason], None],
        clock: Callable[[], float],
    ) -> None:
        self._kept, self._channel, self._config = kept, channel, config
        self._gate, self._conditions, self._outbox = gate, conditions, outbox
        self._pauses, self._note, self._clock = pauses, note, clock
        self._schedule, self._failures = schedule, failures

    def unanswered(self) -> list[tuple[Round, Question]]:
        """Questions that were taken and have no answer yet."""
        asked = [(entry, question_of(entry)) for entry in self._kept.journal.rounds() if entry.phase in UNFINISHED]
        return [(entry, question) for entry, question in asked if question is not None]

    def take(self, question: Question, session: Session, abilities: Abilities) -> Round | None:
        """The round of a question that will be answered; none if it was declined, or is being answered already."""
        if any(entry.task == question.question for entry, _ in self.unanswered()):
            return None  # asked again by a server that has not heard of us yet
        timetable = self._schedule.begin(question.deadline_seconds)
        try:
            return self._accepted(question, abilities)
        except TaskRefused as refusal:
            self._note(question.question, refusal.reason)
            timetable.wait()  # however long it took to find out
            session.decline(Decline(question.question, refusal.heard))
            return None

    def _accepted(self, question: Question, abilities: Abilities) -> Round:
        mechanism = self._gate.admit(question, abilities)
        if self._conditions.missing():
            raise TaskRefused(Reason.CONDITIONS)
        order, request = order_of(question, mechanism), self._request(question)
        try:
            return self._kept.journal.accept(question.question, Kind.SUMMARY, order, mechanism, request)
        except OutOfOrder as error:  # the journal has forgotten it, and the ledger has not
            raise TaskRefused(Reason.REPLAYED) from error

    def answer(self, entry: Round, question: Question, session: Session, abilities: Abilities) -> None:
        """Answer a question, new or begun before. Afterwards it is released, given up, or kept for another try."""
        ends = entry.accepted_at + question.deadline_seconds
        left_seconds = entry.left_seconds(question.deadline_seconds, self._clock())
        allowed_seconds = min(left_seconds, self._gate.keeper.policy.limits.longest_task_seconds)
        timetable = self._schedule.begin(allowed_seconds, question.kind.name)
        pause = self._pauses.for_work(timetable.work_seconds)
        try:
            mechanism = self._still_wanted(entry, question, abilities)
            looking = self._looking(question, abilities, pause, timetable)
            self._kept.journal.attempt(question.question)
            self._release(question, mechanism, self._found(question, looking))
        except TaskRefused as refusal:
            self._give_back(question, refusal, session, timetable)
        except TrainingStopped:
            if pause.error is not None:
                raise pause.error from None
            if self._clock() >= ends:
                self._give_back(question, TaskRefused(Reason.LATE), session, timetable)
        else:
            timetable.wait()
            self._outbox.send()

    def _still_wanted(self, entry: Round, question: Question, abilities: Abilities) -> AnswerMechanism:
        if self._clock() >= entry.accepted_at + question.deadline_seconds:
            raise TaskRefused(Reason.LATE)
        if entry.attempts >= self._config.rounds.most_attempts:
            raise TaskRefused(Reason.TOO_MANY_ATTEMPTS)
        return self._gate.admit_again(question, abilities, booked=entry.booking is not None)

    def _looking(
        self, question: Question, abilities: Abilities, pause: Pause, timetable: Timetable
    ) -> Evaluating | Polling:
        pacing = (pause, timetable.wait, lambda: pause.stopped, timetable.as_usual)
        if question.choice_by is ChoiceBy.VOTES:
            return Polling(self._channel.download, record_losses_of(abilities), *pacing)
        return Evaluating(self._channel.download, evaluation_of(abilities), *pacing)

    def _found(self, question: Question, looking: Evaluating | Polling) -> int | float | list[int]:
        """What the mechanism is to noise: the votes, or one number. The app is told what it was not found by."""
        try:
            if isinstance(looking, Polling):
                return looking.of(question.models)
            return private_answer(question, looking.of(question.models))
        finally:
            if looking.failure is not None:
                self._failures.note(looking.failure)

    def _release(self, question: Question, mechanism: AnswerMechanism, answer: int | float | list[int]) -> None:
        """Book, noise and store."""
        request = self._request(question)
        unfailing: Unfailing[Any] = Unfailing(
            mechanism,
            nothing=lambda: [] if question.choice_by is ChoiceBy.VOTES else 0,
            failed=lambda error: self._failures.note(in_evaluation(error)),
        )
        try:
            self._kept.journal.release(question.question, unfailing, answer, request=request, noise=NoiseSource())
        except BudgetExhausted as error:
            raise TaskRefused(Reason.BUDGET) from error
        except OutOfOrder as error:  # it was taken for another server's name
            raise TaskRefused(Reason.REPLAYED) from error

    def _request(self, question: Question) -> Request:
        return Request(self._kept.identity.enrolled.server, PURPOSE, question.question)

    def _give_back(self, question: Question, refusal: TaskRefused, session: Session, timetable: Timetable) -> None:
        self._note(question.question, refusal.reason)
        self._kept.journal.give_up(question.question)
        with suppress(Cancelled):
            timetable.wait()
        with suppress(ConnectionLost):
            session.decline(Decline(question.question, refusal.heard))
