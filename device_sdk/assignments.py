"""From a task's arrival to its release: taken or declined, handed out, and handed in.

A task is on disk before anything is done for it. Handed out once more after a restart, it is looked at again: the
app, its trainer or its policy may be others by then, and its time may be over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from device_sdk.conditions import Conditions, TrainingGate
from device_sdk.events import emit
from device_sdk.policy import Abilities, Gatekeeper, Reason, TaskRefused
from device_sdk.round_record import Kind, Phase
from device_sdk.trainers.errors import TrainingStopped
from device_sdk.trainers.task_in_hand import TaskInHand
from device_sdk.trainers.task_terms import mechanism_of, read_mask, settings_of, shapes_of
from device_sdk.wire.codec import decode, encode
from device_sdk.wire.errors import Cancelled, ConnectionLost, MalformedMessage, PayloadMismatch, Refused
from device_sdk.wire.messages import Decline, DeclineReason, ErrorCode, Task
from device_sdk.wire.tensors import read_model
from privacy.randomness import NoiseSource
from privacy.release import Request

if TYPE_CHECKING:
    from device_sdk.config import DeviceConfig
    from device_sdk.kept import Kept
    from device_sdk.outbox import Outbox
    from device_sdk.renewal import Renewal
    from device_sdk.round_record import Round
    from device_sdk.trainers.protocol import Mask
    from device_sdk.wire.cancelling import Stop
    from device_sdk.wire.channel import Channel, Session
    from privacy.release import Mechanism

    Tasks = Generator[TaskInHand, None, None]

PURPOSE = "training"
UNFINISHED = frozenset({Phase.ACCEPTED, Phase.BOOKED})
"""Phases in which there is nothing to send yet."""
_OVER = frozenset({ErrorCode.NOT_ASKED, ErrorCode.NOT_FOUND})
"""What a server says when a model is asked for that nobody trains any more."""


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
        renewal: Renewal,
        stop: Stop,
        clock: Callable[[], float],
    ) -> None:
        self._kept, self._channel, self._config = kept, channel, config
        self._gatekeeper, self._conditions, self._outbox = gatekeeper, conditions, outbox
        self._renewal, self._stop, self._clock = renewal, stop, clock
        self.refusals: Counter[Reason] = Counter()
        """What was declined, and why; it stays on the device."""

    def take(self, task: Task, session: Session, abilities: Abilities) -> Round | None:
        """The round of a task that will be done; none if it was declined, or is being done already."""
        order = encode(task)
        if any(entry.order == order for entry in self._kept.journal.rounds()):
            return None  # pushed again by a server that had not heard of us: it has been sent since
        try:
            self._gatekeeper.admit(task, abilities)
        except TaskRefused as refusal:
            self.note(refusal.reason)
            session.decline(Decline(task.task, refusal.heard))
            return None
        if self._conditions.missing():
            session.decline(Decline(task.task, DeclineReason.NOT_NOW))
            return None
        return self._kept.journal.accept(task.task, Kind.TRAINING, order)

    def hand_out(self, entry: Round, session: Session, abilities: Abilities) -> Tasks:
        """Hand out a task, new or begun before. Afterwards it is released, given up, or kept for another try."""
        task = decode(Task, entry.order)
        ends = entry.accepted_at + task.deadline_seconds

        def give_back() -> None:
            self._kept.journal.give_up(task.task, self._kept.ledger)
            with suppress(ConnectionLost):
                session.decline(Decline(task.task, DeclineReason.NOT_NOW))

        try:
            self._check_still_wanted(entry, task, abilities)
            weights = read_model(self._channel.download(task.model.blob), task.model.tensors)
            settings = settings_of(task.objective, self._mask(task))
        except (TaskRefused, PayloadMismatch, MalformedMessage) as error:
            self.note(error.reason if isinstance(error, TaskRefused) else Reason.MODEL)
            give_back()
            return
        except Refused as refusal:
            if refusal.code not in _OVER:
                raise
            self.note(Reason.LATE)
            give_back()
            return
        self._kept.journal.attempt(task.task)
        pause = _Pause(self._gate(ends - self._clock()), self._renewal)
        held = TaskInHand(
            task,
            weights,
            settings,
            between_batches=pause,
            hand_in=lambda data: self._hand_in(task, data),
            give_back=give_back,
        )
        yield held
        if pause.error is not None:
            raise pause.error
        # What is stored will be sent, whatever the app has made of an error while sending it.
        unfinished = not held.is_over and self._kept.phase_of(task.task) in UNFINISHED
        if unfinished and (self._clock() >= ends or not pause.stopped):
            held.decline()

    def note(self, reason: Reason) -> None:
        """Remember, on the device, why a task was declined."""
        self.refusals[reason] += 1
        emit("training_stopped", reason=f"declined: {reason.value}")

    def _check_still_wanted(self, entry: Round, task: Task, abilities: Abilities) -> None:
        if self._clock() >= entry.accepted_at + task.deadline_seconds:
            raise TaskRefused(Reason.LATE)
        if entry.attempts >= self._config.rounds.most_attempts:
            raise TaskRefused(Reason.TOO_MANY_ATTEMPTS)
        self._gatekeeper.admit_again(task, abilities, booked=entry.booking is not None)

    def _mask(self, task: Task) -> Mask | None:
        blob = task.objective.mask
        return None if blob is None else read_mask(self._channel.download(blob), shapes_of(task))

    def _gate(self, deadline_seconds: float) -> TrainingGate:
        settings = self._config.conditions
        return TrainingGate(
            self._conditions,
            self._stop,
            deadline_seconds=deadline_seconds,
            ask_every_seconds=settings.ask_every_seconds,
            patience_seconds=settings.patience_seconds,
        )

    def _hand_in(self, task: Task, data: Any) -> None:
        """Book, noise and store; send it if there is a connection, else when there is one again."""
        mechanism: Mechanism[Any] = mechanism_of(task)
        request = Request(self._kept.identity.enrolled.server, PURPOSE, task.task)
        self._kept.journal.release(task.task, self._kept.ledger, mechanism, data, request=request, noise=NoiseSource())
        try:
            self._outbox.send()
        except (Cancelled, ConnectionLost):
            pass
        except Refused as refusal:
            if not refusal.retry_after_seconds:
                raise


class _Pause:
    """Between batches: conditions, cancellation, the deadline, and a certificate that may be about to end."""

    def __init__(self, gate: TrainingGate, renewal: Renewal) -> None:
        self._gate, self._renewal = gate, renewal
        self.stopped = False
        self.error: Exception | None = None
        """What went wrong here; it is the device's own affair, and not to be taken for the trainer's."""

    def __call__(self) -> None:
        try:
            self._gate()
            self._renewal.renew_if_due()
        except TrainingStopped:
            self.stopped = True
            raise
        except Exception as error:
            self.stopped, self.error = True, error
            raise TrainingStopped("the device cannot go on; nothing was released") from error
