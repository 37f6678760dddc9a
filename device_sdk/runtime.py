"""The path of a round on a device; it can be taken up again at every arrow.

    check in -> task -> (policy) accept -> train -> book -> noise, store -> upload -> feedback

Questions about models take the same path (`device_sdk.questions`), between tasks: whatever is stored is sent first.

The journal (`device_sdk.state`) knows what was asked, the ledger what was booked, noised and acknowledged.
Whatever ends the process in between, the next run begins with what is unfinished: stored releases are sent, the same
bytes in their order; a task that is still in time is trained again for what it has booked; one that is late, or
that was begun too often, is given up. Only then does the device check in for more.

Nothing that the app's code or data do wrong ends a run, and no mechanism does (`device_sdk.failures`): a server would
notice. What ends it is the app, a server that says no for good, or a state on disk that cannot be relied on.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from device_sdk.affinity import Exploration
from device_sdk.answer_schedule import AnswerSchedule
from device_sdk.assignments import Assignments
from device_sdk.cohort_choice import CohortChoice
from device_sdk.conditions import Conditions
from device_sdk.errors import DeviceBusy, OutOfOrder
from device_sdk.failures import Failures, forgiving, in_reading, in_sharing
from device_sdk.outbox import Outbox, summary_order
from device_sdk.pauses import Pauses
from device_sdk.policy import Abilities, Gatekeeper, Policy, Reason, TaskRefused
from device_sdk.question_gate import QuestionGate
from device_sdk.questions import Questions
from device_sdk.renewal import Renewal
from device_sdk.round_record import UNFINISHED, Kind, Phase
from device_sdk.trainers.errors import InvalidSettings, ModelMismatch, TrainingStopped
from device_sdk.trainers.protocol import ModelChecker, RecordReader
from device_sdk.unfailing import Unfailing
from device_sdk.wire.errors import (
    Cancelled,
    ConnectionLost,
    DeadlinePassed,
    MalformedMessage,
    Refused,
    WrongVersion,
)
from device_sdk.wire.messages import (
    CheckIn,
    CohortsChanged,
    ComeBack,
    Decline,
    DeclineReason,
    Feedback,
    Goodbye,
    GoodbyeReason,
    Question,
    Task,
)
from privacy.errors import BudgetExhausted, InvalidTerms, MissingExtra, UnsupportedModel
from privacy.randomness import NoiseSource
from privacy.release import Request

if TYPE_CHECKING:
    from device_sdk.assignments import Tasks
    from device_sdk.config import DeviceConfig
    from device_sdk.kept import Kept
    from device_sdk.trainers.protocol import Trainer
    from device_sdk.trainers.task_in_hand import TaskInHand
    from device_sdk.wire.cancelling import Stop
    from device_sdk.wire.channel import Channel, Session
    from device_sdk.wire.messages import ServerMessage
    from privacy.release import Mechanism

SUMMARY = "summary"
FEEDBACK_PATIENCE_SECONDS = 30.0
_LONGEST_SETBACK_SECONDS = 60.0
_LONGEST_SUBJECT = 200
_DECLINED_SECONDS = 0.1


class Runtime:
    """Drives the rounds of one device over one channel, in one thread; `stop` ends it, at the latest after a batch."""

    def __init__(
        self,
        kept: Kept,
        channel: Channel,
        config: DeviceConfig,
        *,
        policy: Policy,
        conditions: Conditions,
        stop: Stop,
        failures: Failures | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures or Failures()
        self._schedule = AnswerSchedule(config.schedule.first_seconds, stop, monotonic)
        self._kept, self._channel, self._config = kept, channel, config
        self._conditions, self._stop = conditions, stop
        self._outbox = Outbox(kept, channel)
        self._renewal = Renewal(kept.identity, channel, clock)
        explore = config.exploration
        self._cohorts = CohortChoice(kept, Exploration(explore.first, explore.decay, explore.least))
        server = kept.identity.enrolled
        gatekeeper = Gatekeeper(
            server.device, server.server, policy, kept.ledger, kept.journal.knows, kept.journal.taken
        )
        pauses = Pauses(conditions, config.conditions, self._renewal, stop)
        self._assignments = Assignments(
            kept,
            channel,
            config,
            gatekeeper=gatekeeper,
            conditions=conditions,
            outbox=self._outbox,
            pauses=pauses,
            schedule=self._schedule,
            failures=self._failures,
            next_check_in=self._next_check_in,
            clock=clock,
        )
        self._questions = Questions(
            kept,
            channel,
            config,
            gate=QuestionGate(gatekeeper),
            conditions=conditions,
            outbox=self._outbox,
            pauses=pauses,
            schedule=self._schedule,
            failures=self._failures,
            note=self._assignments.note,
            clock=clock,
        )
        self._setbacks = 0
        self._goes_on: Callable[[], bool] = lambda: False
        """Whether another task is wanted as soon as one is handed in; an app with a loop of its own asks by itself."""

    @property
    def updates_sent(self) -> int:
        """How many updates the server has acknowledged to this runtime."""
        return len(self._outbox.updates_sent)

    @property
    def refusals(self) -> Counter[Reason]:
        """What was declined, and why; it stays on the device."""
        return self._assignments.refusals

    def run(self, trainer: Trainer, rounds: int | None = None) -> int:
        """Train for whatever the server asks and policy allows; returns how many updates were acknowledged."""
        self._goes_on = lambda: rounds is None or self.updates_sent + 1 < rounds
        with closing(self.tasks(self._abilities_of(trainer), rounds)) as tasks:
            for task in tasks:
                refused = self._refused(task, trainer)
                if refused is not None:
                    task.decline(refused)
        if isinstance(trainer, RecordReader) and trainer.unreadable_records:
            self._failures.note(in_reading())
        return self.updates_sent

    def _refused(self, task: TaskInHand, trainer: Trainer) -> Reason | None:
        """Train; the reason not to, if there is one."""
        try:
            task.train(trainer)
        except TrainingStopped:
            pass  # the journal keeps the task while it is in time
        except (ModelMismatch, InvalidSettings):
            return Reason.MODEL
        except (UnsupportedModel, MissingExtra) as error:
            self._failures.note(error)  # only the app can mend its model
            return Reason.MODEL
        except BudgetExhausted:
            return Reason.BUDGET
        except OutOfOrder:  # the journal has forgotten it, and the ledger has not
            return Reason.REPLAYED
        except TaskRefused as refusal:
            return refusal.reason
        return None

    def _abilities_of(self, trainer: Trainer) -> Abilities:
        abilities = Abilities.of(trainer)
        if not isinstance(trainer, ModelChecker):
            return abilities
        return replace(abilities, check_model=forgiving(trainer, self._failures))

    def tasks(self, abilities: Abilities, rounds: int | None = None) -> Tasks:
        """Tasks to be done, one at a time, until `stop` is set or `rounds` updates were acknowledged."""
        with suppress(Cancelled):
            while not self._has_done(rounds) and self._conditions_hold():
                try:
                    with self._channel.attend() as session:
                        self._meet(session)
                        yield from self._attended(session, abilities, rounds)
                    self._kept.ledger.write_acknowledged()
                except WrongVersion:
                    raise
                except (ConnectionLost, MalformedMessage):
                    self._setback()
                except Refused as refusal:
                    if not refusal.retry_after_seconds:
                        raise
                    self._stop.wait(refusal.retry_after_seconds)

    def share(self, mechanism: Mechanism[Any], data: object, subject: str, nothing: object = ()) -> bool:
        """Release a summary and send it; False if that was done before, under the same terms for the same subject.

        `nothing` are data of no record, of the form of `data`.
        """
        timetable = self._schedule.begin(math.inf)
        if not (0 < len(subject) <= _LONGEST_SUBJECT and subject.isprintable()):
            raise InvalidTerms(f"a subject is a line of at most {_LONGEST_SUBJECT} characters; nothing was booked")
        journal, order = self._kept.journal, summary_order(mechanism, subject)
        name = f"{mechanism.name} {hashlib.sha256(order).hexdigest()}"  # no server's task has a space in it
        request = Request(self._kept.identity.enrolled.server, SUMMARY, subject)
        if self._kept.phase_of(name) is None:
            if journal.knows(name):
                return False
            try:
                journal.accept(name, Kind.SUMMARY, order, mechanism, request)
            except OutOfOrder:
                return False  # the journal has forgotten it after many rounds, and the ledger has not
        if self._kept.phase_of(name) in UNFINISHED:
            mechanism.check(data)  # another form than the mechanism's is a mistake of the caller
            unfailing = Unfailing(mechanism, lambda: nothing, lambda error: self._failures.note(in_sharing(error)))
            journal.release(name, unfailing, data, request=request, noise=NoiseSource())
            timetable.wait()
        while self._kept.phase_of(name) is not None:
            try:
                with self._channel.attend() as session:
                    self._meet(session)
                    self._outbox.send()
            except ConnectionLost:
                self._setback()
        if name in self._outbox.not_wanted:
            raise self._outbox.not_wanted[name]
        return True

    def _attended(self, session: Session, abilities: Abilities, rounds: int | None) -> Tasks:
        """Everything that happens on one stream; ends when there is a reason to open another, or none."""
        self._outbox.has_checked_in = False
        self._outbox.send()
        yield from self._unfinished(session, abilities)
        waiting = self._outbox.has_checked_in
        while not (session.outdated or self._stop.is_set() or self._conditions.missing()):
            enough = self._has_done(rounds)
            if enough and not self._expects_feedback():
                return
            if not (waiting or enough):
                session.check_in(CheckIn(self._cohorts.claim()))
                waiting = True
            message = self._received(session, FEEDBACK_PATIENCE_SECONDS if enough else None)
            if isinstance(message, Task):
                self._outbox.has_checked_in = False
                yield from self._do(message, session, abilities if waiting else None)
                waiting = self._outbox.has_checked_in
            elif isinstance(message, Question):
                self._answer(message, session, abilities)
            elif not self._heard(message) or (message is None and enough):
                return
            if self._is_half_way(message):
                return  # stopped, or not sent: that comes first when the device is back

    def _next_check_in(self) -> CheckIn | None:
        """What goes with an update that is handed in: a message of its own would cost both ends more."""
        if not self._goes_on() or self._stop.is_set() or self._conditions.missing():
            return None
        return CheckIn(self._cohorts.claim())

    def _unfinished(self, session: Session, abilities: Abilities) -> Tasks:
        """What an earlier run has begun: tasks, then questions."""
        for entry in self._kept.journal.rounds():
            if entry.kind is Kind.TRAINING and entry.phase in UNFINISHED:
                yield from self._assignments.hand_out(entry, session, abilities, again=True)
        for entry, question in self._questions.unanswered():
            self._questions.answer(entry, question, session, abilities)

    def _is_half_way(self, message: ServerMessage | None) -> bool:
        match message:
            case Task(task=name) | Question(question=name):
                is_sent = name in self._outbox.updates_sent
                return not is_sent and self._kept.phase_of(name) not in {None, Phase.UPLOADED}
            case _:
                return False

    def _do(self, task: Task, session: Session, abilities: Abilities | None) -> Tasks:
        """Take a task and hand it out; one that comes without a check-in is declined."""
        if abilities is None:
            self._assignments.note(task.task, Reason.UNASKED)
            session.decline(Decline(task.task, DeclineReason.NOT_NOW))
        entry = None if abilities is None else self._assignments.take(task, session, abilities)
        if entry is None or abilities is None:
            self._setback()  # so that a server which asks for the impossible does not keep the device busy
            return
        self._setbacks = 0
        yield from self._assignments.hand_out(entry, session, abilities)

    def _answer(self, question: Question, session: Session, abilities: Abilities) -> None:
        entry = self._questions.take(question, session, abilities)
        if entry is None:
            # Ten a second: no longer, because an honest server may ask much of a device that has nothing left to spend.
            self._stop.wait(_DECLINED_SECONDS)
            return
        self._questions.answer(entry, question, session, abilities)

    def _received(self, session: Session, patience_seconds: float | None) -> ServerMessage | None:
        """The next message; None when it is time to look at the certificate, or patience is over."""
        self._renewal.renew_if_due()
        wait_seconds = self._renewal.wait_seconds()
        try:
            return session.receive(min(wait_seconds, patience_seconds or wait_seconds))
        except DeadlinePassed:
            return None

    def _heard(self, message: ServerMessage | None) -> bool:
        """Act on what the server says beside tasks; False if the stream is over."""
        match message:
            case Feedback():
                self._cohorts.learn(message)
            case CohortsChanged():
                self._cohorts.follow(message.cohorts)
            case ComeBack():
                self._stop.wait(message.after_seconds)
                return False
            case Goodbye():
                if message.reason is GoodbyeReason.REPLACED:
                    raise DeviceBusy("this device has connected from elsewhere; run it in one place; nothing was lost")
                self._setback()
                return False
            case _:
                pass
        return True

    def _meet(self, session: Session) -> None:
        """What the server has seen of the ledger must still be in it; then learn which cohorts there are."""
        if session.welcome.countersignature:
            self._outbox.keep(session.welcome.countersignature)
        self._cohorts.follow(session.welcome.cohorts)

    def _conditions_hold(self) -> bool:
        """Wait until the app agrees; False when told to stop."""
        while not self._stop.is_set():
            if not self._conditions.missing():
                return True
            self._stop.wait(self._config.conditions.ask_every_seconds)
        return False

    def _setback(self) -> None:
        """Wait, longer each time something came to nothing."""
        self._stop.wait(min(_LONGEST_SETBACK_SECONDS, 0.1 * 2**self._setbacks))
        self._setbacks = min(self._setbacks + 1, 20)

    def _expects_feedback(self) -> bool:
        """Whether an update that was sent here is still to be judged; what earlier runs sent is not waited for."""
        return any(entry.task in self._outbox.to_be_judged for entry in self._kept.journal.awaiting_feedback())

    def _has_done(self, rounds: int | None) -> bool:
        return rounds is not None and self.updates_sent >= rounds
