"""What devices say to a running server, and what it answers: the desk behind the gateway (`desk.Desk`).

Nothing is decided here that a crash could undo: an acknowledged release is in the store, a task was booked before it
was pushed. Who is here is known to `Presence` only; devices say it again when they reconnect.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import (
    AffinityClaim,
    Cohorts,
    ComeBack,
    DeclineReason,
    ErrorCode,
    Task,
    UpdateHeader,
    UploadAccepted,
    Welcome,
)
from device_sdk.wire.task_terms import mechanism_of
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from server_kit.cohort_tree import lineage
from server_kit.daemon import norms
from server_kit.daemon.blacklist import LIES, TOO_LONG, Blacklist
from server_kit.daemon.group_commit import GroupCommit
from server_kit.daemon.intake_checks import check_receipt
from server_kit.daemon.presence import Presence
from server_kit.daemon.refusals import Misconduct
from server_kit.daemon.release_receipts import receipt_in
from server_kit.errors import UnreadableReceipt
from server_kit.interfaces import CheckIn
from server_kit.steady_clock import steady_seconds
from server_kit.store.protocol import Arrival, TaskRecord, TaskState

if TYPE_CHECKING:
    from concurrent.futures import Future

    from device_sdk.wire.messages import CheckIn as WireCheckIn
    from device_sdk.wire.messages import CohortId, Decline, DeviceId, GridEncoding, ReleaseHeader, ServerMessage
    from device_sdk.wire.summary_terms import SummaryMechanism
    from device_sdk.wire.task_terms import UpdateMechanism
    from privacy.keys import SigningKey
    from privacy.receipts import Receipt
    from server_kit.daemon.blacklist import Leniency
    from server_kit.daemon.feedback_mac import FeedbackSeal
    from server_kit.daemon.intake_checks import IntakeChecks
    from server_kit.daemon.model_shelf import ModelShelf
    from server_kit.daemon.promise import Promise
    from server_kit.daemon.spool import Parcel
    from server_kit.store.protocol import Store

log = logging.getLogger("covey.server")

_PIECE_NUMBERS = 1 << 18
_MOST_KNOWN_RECEIPTS = 10_000
_LAST_FEW = 10
_DECLINES = {
    DeclineReason.NOT_NOW: "a device declined a task: it does not take part at this moment",
    DeclineReason.TERMS: "a device declined a task: [privacy] goes beyond its budget or policy",
    DeclineReason.MODEL: "a device declined a task: its app does not train this model in this way",
}
_PAUSE_SECONDS = 60.0
"""For a device that has declined a task."""
UNREADABLE = "unreadable receipt"
"""Under which name a receipt that is stored and cannot be read is counted."""
_BAN_SECONDS = 600.0
"""After which a device on the blacklist may ask whether it still is."""


@dataclass(frozen=True)
class Identity:
    """Who the server is when it countersigns."""

    server: str
    key: SigningKey


@dataclass
class Told:
    """What the coordinator wants devices to know and the desk to hand out; replaced as a whole, read by any thread."""

    cohorts: Cohorts = field(default_factory=lambda: Cohorts(("0",)))
    open_rounds: dict[str, int] = field(default_factory=dict)
    """The round that each cohort is in: a task of an earlier one is not worth beginning."""
    out_when_due: dict[str, int] = field(default_factory=dict)
    """How many devices may still be out when a cohort's round can end."""
    wake_from: float = 0
    """With fewer waiting devices the coordinator has nothing to do, and is not woken by one more."""
    gives_feedback: bool = True
    """Whether devices will hear how well their updates fit, and had better wait for it."""


class LiveDesk:
    """Serves one federation.

    `wake` is called when the coordinator may have something to do, `arrived` when a release is durable, `on_silence`
    when a device will not answer a question.
    """

    def __init__(
        self,
        store: Store,
        identity: Identity,
        seal: FeedbackSeal,
        models: ModelShelf,
        checks: IntakeChecks,
        *,
        wake: Callable[[], None],
        arrived: Callable[[Arrival], None],
        on_silence: Callable[[DeviceId, str], None] = lambda _, __: None,
        leniency: Leniency | None = None,
        promise: Promise | None = None,
        most_records: float = norms.MOST_RECORDS,
        clock: Callable[[], float] = steady_seconds,
    ) -> None:
        self.presence = Presence()
        self.told = Told()
        self.endings = 0
        """How many tasks have ended without an answer."""
        self._store, self._seal, self.models, self._wake, self._clock = store, seal, models, wake, clock
        self._identity, self.checks = identity, checks
        self._arrived, self._on_silence = arrived, on_silence
        self._declined: dict[DeviceId, float] = {}
        self._newest: dict[bytes, Receipt] = {}
        self.blacklist = Blacklist(store, leniency)
        self._promise = promise
        self._most_records = most_records
        self._commit = GroupCommit(store, clock, self._kept, self._can_wait)
        self._mutex = threading.Lock()
        self._out: dict[DeviceId, TaskRecord] = {}
        self._out_in: Counter[tuple[CohortId, int]] = Counter()
        """How many of them are of each round."""
        self._read: dict[DeviceId, Task] = {}
        """What the tasks say that are out, as far as they were written here."""
        self.know([record for record in store.tasks() if record.state is TaskState.OUT])

    # What the coordinator tells the desk

    def know(self, tasks: Sequence[TaskRecord], read: Sequence[Task] = ()) -> None:
        """These tasks were booked, so they may be handed out; `read` is what they say, where it need not be read."""
        with self._mutex:
            for record in tasks:
                self._drop(record.device)
                self._out[record.device] = record
                self._out_in[record.cohort, record.round] += 1
            self._read.update((task.device, task) for task in read)

    def out(self) -> list[TaskRecord]:
        """The tasks that devices have, or are to be given."""
        with self._mutex:
            return list(self._out.values())

    def may_be_due(self, header: UpdateHeader) -> bool:
        """Whether, after this update, a worker may have enough for its cohort's next model; in doubt it looks."""
        return self._awaited(header.cohort, header.round) <= 0

    def give_up(self, record: TaskRecord) -> None:
        """Count on this task no longer; what still comes is acknowledged and not used."""
        self._end(record, TaskState.LOST)

    def close(self) -> None:
        self._commit.close()

    # desk.Attendance

    def welcome(self, device: DeviceId) -> Welcome:
        self.presence.came(device)
        self._store.seen([device], self._clock())
        enrolled = self._store.register.find(device)
        if enrolled is None:
            raise Refused(ErrorCode.NOT_ENROLLED, "this server does not know the device; enrol again")
        with self._counting_lies(device):
            seen = self._stored_receipt(lambda: self._store.last_receipt(enrolled.ledger_key))
        if self._promise is not None:
            sent = [] if seen is None else self._store.receipts_of(enrolled.ledger_key, self._count_unreadable)
            self._promise.recall(device, sent)
        return Welcome(self.told.cohorts, b"" if seen is None else self._countersigned(seen))

    def check_in(self, device: DeviceId, check_in: WireCheckIn) -> ServerMessage | None:
        task = self._still_to_do(device)
        if task is not None:
            return task
        if self._has_declined(device):
            # It would only decline again.
            return ComeBack(_PAUSE_SECONDS)
        claimed = self._claimed(device, check_in.affinity)
        if claimed is None and not self.blacklist.is_banned(device, self._round):
            self.blacklist.strike(device, self._round, self._clock())
        if self.blacklist.is_banned(device, self._round):
            return ComeBack(_BAN_SECONDS)
        if self._has_given_all(device):
            # It stays, for questions are paid from another share, and it is to hear how its last update did.
            log.info("a device trains no more: it has given all that [policy] promises", extra={"device": device})
            return None
        self._ready(claimed or CheckIn(device))
        return None

    def decline(self, device: DeviceId, decline: Decline) -> None:
        record = self._out.get(device)
        if record is not None and record.task == decline.task:
            self._declined[device] = self._clock() + _PAUSE_SECONDS
            self._end(record, TaskState.DECLINED)
            # Whoever has no time now will have it later; terms and models only the operator or the app can mend.
            level = logging.INFO if decline.reason is DeclineReason.NOT_NOW else logging.WARNING
            log.log(level, _DECLINES[decline.reason], extra={"device": device, "cohort": record.cohort})
        else:
            self._on_silence(device, decline.task)
            self._wake()

    def gone(self, device: DeviceId, *, leaving: bool) -> None:
        self.presence.gone(device)
        record = self._out.get(device)
        if leaving and record is not None:
            self._end(record, TaskState.LOST)
        self._wake()

    # desk.Models

    def blob(self, device: DeviceId, sha256: bytes) -> memoryview | None:
        del device
        return self.models.find(sha256)

    # desk.Releases

    def announce(self, device: DeviceId, header: ReleaseHeader) -> UploadAccepted | None:
        receipt = receipt_in(header.receipt)
        with self._counting_lies(device):
            last = self._last_receipt(receipt.device_key)
            if last == receipt:
                return self._accepted(self._countersigned(receipt), repeated=True)
            check_receipt(receipt, self._mechanism_of(device, header), last)
        return None

    def accept(self, device: DeviceId, header: ReleaseHeader, parcel: Parcel) -> UploadAccepted:
        while True:
            answer, storing = self.begin_accept(device, header, parcel)
            if storing is None or storing.result():
                return answer
            # What we knew is outdated: the store is asked next time.
            self._newest.pop(receipt_in(header.receipt).device_key, None)

    # desk.Prompt

    def waits(self, device: DeviceId, check_in: WireCheckIn) -> bool:
        if device in self._out or self._has_declined(device) or self._has_given_all(device):
            return False
        claimed = self._claimed(device, check_in.affinity)
        if claimed is None or self.blacklist.is_banned(device, self._round):
            return False
        self._ready(claimed)
        return True

    def begin_accept(
        self, device: DeviceId, header: ReleaseHeader, parcel: Parcel
    ) -> tuple[UploadAccepted, Future[bool] | None]:
        receipt = receipt_in(header.receipt)
        with self._counting_lies(device):
            if isinstance(header, UpdateHeader):
                self._check_length(device, self._task_of(device, header), header.encoding, parcel)
            else:
                self.checks.content(device, header, parcel.read())
        shelf = _Checking(self)
        receipts = ReceiptDesk(self._identity.server, self._identity.key, shelf)
        # The key that it names is the enrolled one: the gateway has looked.
        accepted = receipts.accept(receipt, header.payload.sha256.hex(), receipt.device_key)
        answer = self._accepted(accepted.countersignature.to_json(), repeated=accepted.repeated)
        if accepted.repeated:
            return answer, None
        payload = parcel.read() if parcel.path is None else parcel.path
        return answer, self._commit.begin(Arrival(device, header, receipt, shelf.after, payload))

    # Inside

    def _accepted(self, countersignature: bytes, *, repeated: bool) -> UploadAccepted:
        return UploadAccepted(countersignature, repeated, final=not self.told.gives_feedback)

    @property
    def _round(self) -> int:
        """How far the cohort is that is furthest."""
        return max(self.told.open_rounds.values(), default=0)

    def _last_receipt(self, device_key: bytes) -> Receipt | None:
        """The newest that we know of. It may be outdated where there are several gateways: the store decides."""
        known = self._newest.get(device_key)
        return self._stored_receipt(lambda: self._store.last_receipt(device_key)) if known is None else known

    def _stored_receipt(self, read: Callable[[], Receipt | None]) -> Receipt | None:
        """What the store has, if it can be read. What an older version took from a liar may not be."""
        try:
            return read()
        except UnreadableReceipt as error:
            raise Misconduct(
                UNREADABLE,
                ErrorCode.RECEIPT_REFUSED,
                "what this server has of the device's ledger cannot be read; it must enrol as a new device; "
                "nothing was counted",
            ) from error

    def _count_unreadable(self, device: DeviceId) -> None:
        self._store.count_refusal(UNREADABLE, device, self._clock())

    @contextmanager
    def _counting_lies(self, device: DeviceId) -> Iterator[None]:
        """What is refused here for a lie is a strike, unless the device is left out already."""
        try:
            yield
        except Misconduct as refusal:
            if refusal.reason in LIES and not self.blacklist.is_banned(device, self._round):
                self.blacklist.strike(device, self._round, self._clock(), counted=True)
            raise

    def _mechanism_of(self, device: DeviceId, header: ReleaseHeader) -> UpdateMechanism | SummaryMechanism:
        """How what is announced must have been noised; refused if it was not asked for."""
        if not isinstance(header, UpdateHeader):
            return self.checks.mechanism_of(device, header)
        task = self._task_of(device, header)
        _check_header(task, header)
        return mechanism_of(task)

    def _countersigned(self, receipt: Receipt) -> bytes:
        return ReceiptDesk(self._identity.server, self._identity.key, MemoryShelf()).countersign(receipt).to_json()

    def _kept(self, arrivals: Sequence[Arrival]) -> None:
        if len(self._newest) >= _MOST_KNOWN_RECEIPTS:
            self._newest.clear()
        for arrival in arrivals:
            try:
                self._tell_of(arrival)
            except Exception:
                # Those that were stored with it are to be heard of all the same.
                log.exception("failed to tell of what was stored", extra={"device": arrival.device})

    def _tell_of(self, arrival: Arrival) -> None:
        self._newest[arrival.receipt.device_key] = arrival.receipt
        if isinstance(arrival.header, UpdateHeader):
            self._forget(arrival.device, arrival.header.task)
        else:
            self.checks.kept(arrival.device, arrival.header)
        if self._promise is not None:
            self._promise.took(arrival.device, arrival.receipt)
        self._arrived(arrival)

    def _awaited(self, cohort: CohortId, round_number: int) -> int:
        """How many updates a cohort still needs before its next model; none if that is not known."""
        may_be_out = self.told.out_when_due.get(cohort)
        if may_be_out is None or self.told.open_rounds.get(cohort) != round_number:
            return 0
        with self._mutex:
            return self._out_in[cohort, round_number] - may_be_out

    def _can_wait(self, arrivals: Sequence[Arrival]) -> bool:
        """Whether nobody could go on with these: all are updates to rounds that need many more than they bring.

        The last few are stored as they come. Answering all of them at the end of a round would delay it.
        """
        brought: Counter[tuple[CohortId, int]] = Counter()
        for arrival in arrivals:
            if not isinstance(arrival.header, UpdateHeader):
                return False
            brought[arrival.header.cohort, arrival.header.round] += 1
        return all(self._awaited(*of) - count > _LAST_FEW for of, count in brought.items())

    def _still_to_do(self, device: DeviceId) -> Task | None:
        """The device's task again, if it was lost on its way and its round goes on; otherwise it is given up."""
        record = self._out.get(device)
        if record is None:
            return None
        if self.told.open_rounds.get(record.cohort, record.round) <= record.round:
            return decode(Task, record.message)
        self._end(record, TaskState.LOST)
        return None

    def _end(self, record: TaskRecord, state: TaskState) -> None:
        self._store.end_task(record.task, state)
        self._forget(record.device, record.task)
        with self._mutex:
            self.endings += 1
        self._wake()

    def _forget(self, device: DeviceId, task: str) -> None:
        """A task is over. The device may have another by now: what comes late is about an earlier one."""
        with self._mutex:
            if device in self._out and self._out[device].task == task:
                self._drop(device)

    def _drop(self, device: DeviceId) -> None:
        record = self._out.pop(device, None)
        if record is not None:
            self._read.pop(device, None)
            of = (record.cohort, record.round)
            self._out_in[of] -= 1
            if not self._out_in[of]:
                del self._out_in[of]

    def _has_declined(self, device: DeviceId) -> bool:
        return self._clock() < self._declined.get(device, 0.0)

    def _has_given_all(self, device: DeviceId) -> bool:
        return self._promise is not None and not self._promise.allows_round(device)

    def _ready(self, claimed: CheckIn) -> None:
        self.presence.ready(claimed)
        if self.presence.is_worth_a_look(self.told.wake_from):
            self._wake()

    def _claimed(self, device: DeviceId, claim: AffinityClaim | None) -> CheckIn | None:
        """What a device asks for. A reward counts only with the server's own word for it; None: that is forged."""
        if claim is None:
            return CheckIn(device)
        evidence = claim.evidence
        if evidence is None or evidence.cohort not in lineage(claim.cohort):
            return CheckIn(device, claim.cohort)
        if not self._seal.holds(device, evidence):
            return None
        # What was said about a cohort's sub-clusters says nothing about those of its children.
        sub_cluster = evidence.sub_cluster if evidence.cohort == claim.cohort else None
        return CheckIn(device, claim.cohort, sub_cluster, claim.reward)

    def _task_of(self, device: DeviceId, header: UpdateHeader) -> Task:
        record = self._out.get(device)
        if record is None or record.task != header.task:
            record = self._store.task(header.task)
        if record is None or record.device != device or not record.message:
            raise Refused(ErrorCode.NOT_ASKED, "this task is not the device's, or it is over; nothing was taken")
        read = self._read.get(device)
        return read if read is not None and read.task == record.task else _task_in(record.message)

    def _check_length(self, device: DeviceId, task: Task, encoding: GridEncoding, parcel: Parcel) -> None:
        length = norms.length(task, encoding, _pieces(parcel, encoding.width_bytes))
        if length <= norms.longest(task, self._most_records):
            return
        self._declined[device] = self._clock() + _PAUSE_SECONDS
        record = self._out.get(device)
        if record is not None and record.task == task.task:
            # Its round does not wait for another try.
            self._end(record, TaskState.LOST)
        raise Misconduct(
            TOO_LONG,
            ErrorCode.MALFORMED,
            "this update is longer than its task's clipping and noise allow; it was not taken",
        )


@lru_cache(maxsize=64)  # asked for when an update is announced and when it has come
def _task_in(message: bytes) -> Task:
    return decode(Task, message)


def _check_header(task: Task, header: UpdateHeader) -> None:
    """Refuse an update that is not for this task's model, or not of its size."""
    if (header.cohort, header.round, header.model_sha256) != (task.cohort, task.round, task.model.blob.sha256):
        raise Refused(ErrorCode.NOT_ASKED, "this update is for another model than its task's; nothing was taken")
    mechanism = mechanism_of(task)
    if header.encoding.count != mechanism.size or header.encoding.width_bytes != mechanism.width_bytes:
        raise Misconduct(
            "another size", ErrorCode.MALFORMED, "this update has another size than its task's; nothing was taken"
        )


def _pieces(parcel: Parcel, width_bytes: int) -> Iterator[bytes]:
    """The bytes, some whole numbers at a time."""
    if parcel.path is None:
        yield parcel.read()
        return
    with parcel.path.open("rb") as file:
        while piece := file.read(_PIECE_NUMBERS * width_bytes):
            yield piece


@dataclass
class _Checking:
    """The store's receipts as `ReceiptDesk` wants them. One that is to be added is stored later, with its bytes."""

    desk: LiveDesk
    after: Receipt | None = None
    """Which must still be the newest then."""

    def last(self, device_key: bytes) -> Receipt | None:
        return self.desk._last_receipt(device_key)

    def find(self, device_key: bytes, sequence: int) -> Receipt | None:
        return self.desk._stored_receipt(lambda: self.desk._store.find_receipt(device_key, sequence))

    def add(self, receipt: Receipt, after: Receipt | None) -> bool:
        del receipt
        self.after = after
        return True
