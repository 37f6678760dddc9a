"""From a task's arrival to its release: taken or declined, handed out, and handed in.

A task is on disk before anything is done for it. Handed out once more after a restart, it is looked at again: the
app, its trainer or its policy may be others by then, and its time may be over. What is said about a task, an update
or a decline, leaves on a schedule (`device_sdk.answer_schedule`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from device_sdk.answer_schedule import AnswerSchedule
from device_sdk.conditions import Conditions
from device_sdk.errors import OutOfOrder
from device_sdk.evaluating import OVER
from device_sdk.events import emit
from device_sdk.failures import Failures, in_training
from device_sdk.policy import TRAINING, Abilities, Gatekeeper, Reason, TaskRefused
from device_sdk.round_order import order_of, task_of
from device_sdk.round_record import UNFINISHED, Kind
from device_sdk.trainers.errors import TrainingStopped
from device_sdk.trainers.nothing_learned import nothing_learned
from device_sdk.trainers.task_in_hand import TaskInHand, settings_of
from device_sdk.unfailing import Unfailing
from device_sdk.wire.errors import Cancelled, ConnectionLost, MalformedMessage, PayloadMismatch, Refused
from device_sdk.wire.messages import Decline, DeclineReason, Task
from device_sdk.wire.task_terms import mechanism_of, read_mask, shapes_of
from device_sdk.wire.tensors import read_model
from privacy.randomness import NoiseSource
from privacy.release import Request

if TYPE_CHECKING:
    from device_sdk.answer_schedule import Timetable
    from device_sdk.config import DeviceConfig
    from device_sdk.kept import Kept
    from device_sdk.outbox import Outbox
    from device_sdk.pauses import Pause, Pauses
    from device_sdk.round_record import Round
    from device_sdk.trainers.errors import TrainingFailed
    from device_sdk.trainers.protocol import Mask, Weights
    from device_sdk.wire.channel import Channel, Session
    from device_sdk.wire.messages import CheckIn

    Tasks = Generator[TaskInHand, None, None]


class Assignments:
    """The tasks of one device."""

    def __init__(
        self,
        kept: Kept,
        channel: Channel,
        config: DeviceConfig,
        *,
        gatekeeper: Gatekeeper,
        conditions: Conditions,
        outbox: Outbox,
        pauses: Pauses,
        schedule: AnswerSchedule,
        failures: Failures,
        next_check_in: Callable[[], CheckIn | None],
        clock: Callable[[], float],
    ) -> None:
        self._kept, self._channel, self._config = kept, channel, config
        self._next_check_in = next_check_in
        self._gatekeeper, self._conditions, self._outbox = gatekeeper, conditions, outbox
        self._pauses, self._clock = pauses, clock
        self._schedule, self._failures = schedule, failures
        self.refusals: Counter[Reason] = Counter()
        """What was declined, and why; it stays on the device."""

    def take(self, task: Task, session: Session, abilities: Abilities) -> Round | None:
        """The round of a task that will be done; none if it was declined, or is being done already."""
        order, timetable = order_of(task), self._schedule.begin(task.deadline_seconds)
        try:
            # The ledger is asked all the same: others may have spent what this task would cost.
            with self._kept.vault.undisturbed():
                entry = self._kept.journal.find(task.task)
                if entry is not None and entry.order == order:
                    return None  # pushed again by a server that had not heard of us: it has been sent since
                return self._admit(task, order, abilities)
        except TaskRefused as error:
            refusal = error
        except OutOfOrder:  # the journal has forgotten it, and the ledger has not
            refusal = TaskRefused(Reason.REPLAYED)
        self.note(task.task, refusal.reason)
        timetable.wait()  # however long it took to find out
        session.decline(Decline(task.task, refusal.heard))
        return None

    def _admit(self, task: Task, order: bytes, abilities: Abilities) -> Round:
        mechanism = self._gatekeeper.admit(task, abilities)
        self._check_conditions()
        request = self._request(task)
        return self._kept.journal.accept(task.task, Kind.TRAINING, order, mechanism, request, begun=True)

    def hand_out(self, entry: Round, session: Session, abilities: Abilities, *, again: bool = False) -> Tasks:
        """Hand out a task, or hand it out again. Afterwards it is released, given up, or kept for another try."""
        task = task_of(entry)
        ends = entry.accepted_at + task.deadline_seconds
        left_seconds = entry.left_seconds(task.deadline_seconds, self._clock())
        allowed_seconds = min(left_seconds, self._gatekeeper.policy.limits.longest_task_seconds)
        timetable = self._schedule.begin(allowed_seconds, TRAINING)

        def give_back(reason: Reason | None = None) -> None:
            self._give_back(task, reason or Reason.APP, session, timetable)

        try:
            if again:
                self._check_still_wanted(entry, task, abilities)
            weights = read_model(self._channel.download(task.model.blob), task.model.tensors)
            settings = settings_of(task.objective, self._mask(task))
        except (TaskRefused, PayloadMismatch, MalformedMessage) as error:
            give_back(error.reason if isinstance(error, TaskRefused) else Reason.MODEL)
            return
        except Refused as refusal:
            if refusal.code not in OVER:
                raise
            give_back(Reason.LATE)
            return
        if again:
            self._kept.journal.attempt(task.task)  # the first is noted with the acceptance
        pause = self._pauses.for_work(timetable.work_seconds)
        held = TaskInHand(
            task,
            weights,
            settings,
            between_batches=pause,
            hand_in=lambda data: self._hand_in(task, data, weights, pause, timetable),
            give_back=give_back,
            failed=lambda failure: self._failed(failure, timetable),
            is_stopped=lambda: pause.stopped,
        )
        yield held
        if pause.error is not None:
            raise pause.error
        # What is stored will be sent, whatever the app has made of an error while sending it.
        if not held.is_over and self._kept.phase_of(task.task) in UNFINISHED:
            _end(held, pause, is_late=self._clock() >= ends)

    def note(self, name: str, reason: Reason) -> None:
        """Remember, on the device, why a task or a question was declined."""
        self.refusals[reason] += 1
        emit("declined", name=name, reason=reason.value)

    def _check_conditions(self) -> None:
        if self._conditions.missing():
            raise TaskRefused(Reason.CONDITIONS)

    def _check_still_wanted(self, entry: Round, task: Task, abilities: Abilities) -> None:
        if self._clock() >= entry.accepted_at + task.deadline_seconds:
            raise TaskRefused(Reason.LATE)
        if entry.attempts >= self._config.rounds.most_attempts:
            raise TaskRefused(Reason.TOO_MANY_ATTEMPTS)
        self._gatekeeper.admit_again(task, abilities, booked=entry.booking is not None)

    def _failed(self, failure: TrainingFailed, timetable: Timetable) -> None:
        self._failures.note(failure)
        timetable.as_usual()

    def _give_back(self, task: Task, reason: Reason, session: Session, timetable: Timetable) -> None:
        self.note(task.task, reason)
        self._kept.journal.give_up(task.task)
        with suppress(Cancelled):
            timetable.wait()
        with suppress(ConnectionLost):
            session.decline(Decline(task.task, DeclineReason.NOT_NOW))

    def _request(self, task: Task) -> Request:
        return Request(self._kept.identity.enrolled.server, TRAINING, task.task)

    def _mask(self, task: Task) -> Mask | None:
        blob = task.objective.mask
        return None if blob is None else read_mask(self._channel.download(blob), shapes_of(task))

    def _hand_in(self, task: Task, data: Any, weights: Weights, pause: Pause, timetable: Timetable) -> None:
        """Book, noise and store; send it at the next tick if there is a connection, else when there is one again."""
        mechanism: Unfailing[Any] = Unfailing(
            mechanism_of(task),
            nothing=lambda: nothing_learned(task, weights),
            failed=lambda error: self._failed(in_training(error), timetable),
            is_stopped=lambda: pause.stopped,
        )
        request, noise = self._request(task), NoiseSource()
        with self._kept.undisturbed():
            released = self._kept.journal.release(task.task, mechanism, data, request=request, noise=noise)
        try:
            timetable.wait()
            with self._kept.undisturbed():
                self._outbox.send(released, self._next_check_in())
        except (Cancelled, ConnectionLost):
            pass
        except Refused as refusal:
            if not refusal.retry_after_seconds:
                raise


def _end(held: TaskInHand, pause: Pause, *, is_late: bool) -> None:
    """What becomes of a task that an app has neither handed in nor declined; one that was stopped is kept."""
    if pause.overran and not is_late:
        held.give_nothing(TrainingStopped("the time for the task is over"))
    elif is_late or not pause.stopped:
        held.decline(Reason.LATE if is_late else None)
