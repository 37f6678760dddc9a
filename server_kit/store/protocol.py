"""What a server must not forget, and the only way in which its processes talk to each other.

    the gateway    accepts what devices send                    (`accept`)
    the worker     makes the next model of one cohort           (`begin_fold`, `finish_fold`, `end_late`)
    coordinator    asks devices, and learns from what was folded (`ask`, `digest`)

Each method is one transaction: when it returns, what it did survives the machine; when it fails, nothing of it is
there. Any process may die between two of them. A cohort never goes back: a record of an earlier version than the one
that is stored is a `StoreConflict`, since whoever made it has not seen the last step. Time comes in by argument, in
seconds of the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from device_sdk.wire.messages import CohortId, DeviceId, ReleaseHeader

if TYPE_CHECKING:
    from pathlib import Path

    from privacy.receipts import Receipt
    from server_kit.daemon.invitations import InvitationStore
    from server_kit.daemon.register import Register

TaskId = str
Json = dict[str, Any]


class TaskState(StrEnum):
    """What has become of a task."""

    OUT = "out"
    """The device has it, or is to be given it when it is here."""
    ARRIVED = "arrived"
    """Its update is stored and waits for the next model."""
    FOLDED = "folded"
    LATE = "late"
    """Its update came after its round; it was acknowledged and is not used."""
    DECLINED = "declined"
    LOST = "lost"
    """Given up; whatever still comes is acknowledged and not used."""


@dataclass(frozen=True)
class TaskRecord:
    """One device's work for one round."""

    task: TaskId
    device: DeviceId
    cohort: CohortId
    round: int
    version: int
    """Of the model that the device was handed."""
    asked_at_seconds: float
    message: bytes
    """The task as it is pushed, and pushed again to a device that reconnects."""
    state: TaskState = TaskState.OUT
    arrival: int | None = None
    """The place of its update in the order in which all updates were accepted."""
    arrived_at_seconds: float | None = None


class CohortState(StrEnum):
    """Whether a cohort trains."""

    TRAINING = "training"
    SPLIT = "split"
    MERGED = "merged"
    """Gone: its devices train with its parent again."""


@dataclass(frozen=True)
class CohortRecord:
    """A cohort between two of its models."""

    cohort: CohortId
    version: int
    round: int
    checkpoint: str
    """The name of the newest checkpoint (model, optimiser, selection)."""
    state: CohortState = CohortState.TRAINING
    opened_at_seconds: float | None = None
    """When the round that is open was opened; None: none is open."""
    needed: int = 1
    """How many arrivals complete it."""
    facts: Json = field(default_factory=dict)
    """What its aggregator must know and only the coordinator does."""


class FoldState(StrEnum):
    """How far a step of a cohort has come."""

    BEGUN = "begun"
    """It is decided which updates make the next model; whoever works it out gets the same."""
    DONE = "done"
    """The model is there; the coordinator has not looked at what it teaches."""
    DIGESTED = "digested"


@dataclass(frozen=True)
class FoldRecord:
    """The step of a cohort from one version to the next."""

    cohort: CohortId
    version: int
    """From which it starts."""
    tasks: tuple[TaskId, ...]
    """Whose updates it folds, in this order."""
    at_seconds: float
    state: FoldState = FoldState.BEGUN
    checkpoint: str = ""
    """Of the next version."""
    report: str = ""
    """The name of the blob with what the coordinator needs of it: the outcome, sketches of the updates."""


@dataclass(frozen=True)
class Lease:
    """The right to work at something until a time. A later holder has a higher `epoch`; the earlier is locked out."""

    name: str
    holder: str
    epoch: int
    until_seconds: float


class Payload(Protocol):
    """The bytes of an accepted release, opened piece by piece, so that a large one is never in memory whole."""

    @property
    def size_bytes(self) -> int: ...

    def pieces(self) -> Iterator[bytes]:
        """All bytes in order, about a mebibyte at a time; `CorruptRecord` if one cannot be opened."""

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`; no more is opened than the pieces they lie in."""


@dataclass(frozen=True)
class Arrival:
    """A release that the gateway has checked: signed, whole, with a receipt that follows `after`."""

    device: DeviceId
    header: ReleaseHeader
    receipt: Receipt
    after: Receipt | None
    payload: bytes | Path
    """Small ones are in memory, others in a file that is now the store's."""


@dataclass(frozen=True)
class SummaryRecord:
    """What a device has said about itself: a histogram, a choice, a noised figure."""

    device: DeviceId
    mechanism: str
    terms: Mapping[str, str | int]
    subject: str
    payload: bytes
    at_seconds: float


@dataclass(frozen=True)
class FeedbackRecord:
    """Feedback that a device has not been sent yet; `message` is the encoded, sealed `Feedback`."""

    device: DeviceId
    message: bytes


@dataclass(frozen=True)
class Happening:
    """Something that people want to know later: a round ended, a cohort split, a model was tested."""

    kind: str
    at_seconds: float
    cohort: CohortId = ""
    facts: Json = field(default_factory=dict)
    """Aggregates and decisions only; nothing about one device's data."""
    number: int = 0
    """Grows with each; given by the store."""


@dataclass(frozen=True)
class Asking:
    """The coordinator asks devices to train: their tasks, and the rounds these belong to as they stand then."""

    tasks: Sequence[TaskRecord]
    cohorts: Sequence[CohortRecord]
    lost: Sequence[TaskId] = ()
    """Tasks that are given up at the same time."""


@dataclass(frozen=True)
class Digest:
    """What the coordinator has learned from a step; all of it becomes true at once.

    `step` is None when the federation changes without one: at its founding.
    """

    step: tuple[CohortId, int] | None
    federation: str
    """The name of the coordinator's own checkpoint, from now on the newest."""
    cohorts: Sequence[CohortRecord] = ()
    """Those that changed or are new."""
    moved: Mapping[TaskId, CohortId] = field(default_factory=dict)
    """Tasks that now belong to another cohort."""
    views: Mapping[DeviceId, Json] = field(default_factory=dict)
    """What is known about devices, for those where it has changed."""
    feedback: Sequence[FeedbackRecord] = ()
    happenings: Sequence[Happening] = ()
    ended: Mapping[TaskId, TaskState] = field(default_factory=dict)
    """Updates outside of all steps: FOLDED if something was learned from them, else LATE. Their bytes are scrubbed."""


@dataclass(frozen=True)
class DeviceRecord:
    """A device for people to look at: when it came, when it was last here, what was refused."""

    device: DeviceId
    enrolled_at_seconds: float
    last_seen_seconds: float | None
    revoked: bool
    refusals: Mapping[str, int]
    releases: int


@dataclass(frozen=True)
class Quota:
    """How many summaries of one device are kept, and how many bytes of them; then the oldest go.

    The newest of each mechanism goes last: a histogram is of use for long, an answer until it was read.
    """

    most_summaries: int = 64
    most_summary_bytes: int = 1 << 20


Unreadable = Callable[[DeviceId], None]
"""Hears whose stored row cannot be read, once for each; the others are given. Without it, such a row is an error."""


class Intake(Protocol):
    """What the gateway stores."""

    def accept(self, arrivals: Sequence[Arrival], now_seconds: float) -> list[bool]:
        """Keep releases with their receipts, all in one transaction; False for each that was not kept.

        That is one whose `after` is not, or no longer, its device's newest receipt; the others are kept.
        An update's task becomes ARRIVED if it is OUT; one that is LOST or DECLINED becomes LATE, and its bytes are not
        kept. A summary takes the place of an earlier one with the same mechanism and subject, and of the device's
        oldest where there are more than its `Quota`. A file is moved.
        """

    def last_receipt(self, device_key: bytes) -> Receipt | None:
        """The newest of one ledger; `UnreadableReceipt` if it says what none does."""

    def find_receipt(self, device_key: bytes, sequence: int) -> Receipt | None:
        """That of this number; `UnreadableReceipt` if it says what none does."""

    def receipts_of(self, device_key: bytes, on_unreadable: Unreadable | None = None) -> list[Receipt]:
        """All of one ledger, in their order."""

    def receipts(self, on_unreadable: Unreadable | None = None) -> Iterator[Receipt]:
        """All, by device and number, for the privacy officer."""

    def device_of(self, device_key: bytes) -> DeviceId | None:
        """Whose ledger has this key, if any receipt of it is stored."""

    def count_refusal(self, reason: str, device: DeviceId | None, now_seconds: float) -> None:
        """Something was refused, and why; kept with the device if it is an enrolled one."""

    def count_refusals(self, counts: Mapping[tuple[str, DeviceId | None], int], now_seconds: float) -> None:
        """As often as the figures say, by reason and device."""

    def seen(self, devices: Sequence[DeviceId], now_seconds: float) -> None:
        """These devices are here."""


class Rounds(Protocol):
    """What coordinator and workers store."""

    def cohorts(self) -> list[CohortRecord]:
        """Those that train, by name."""

    def tasks(self, cohort: CohortId | None = None, *states: TaskState) -> list[TaskRecord]:
        """By the order of arrival, then of asking; of all cohorts, or of one; OUT and ARRIVED if no state is named."""

    def task(self, task: TaskId) -> TaskRecord | None: ...

    def ask(self, asking: Asking) -> None:
        """Book tasks before anyone is told of them."""

    def end_task(self, task: TaskId, state: TaskState) -> bool:
        """An OUT task is DECLINED or LOST; False if it was not OUT."""

    def payload(self, task: TaskId) -> Payload:
        """The bytes of an ARRIVED update."""

    def begin_fold(self, fold: FoldRecord, late: Sequence[TaskId], lease: Lease) -> FoldRecord:
        """Decide which updates make the next model, and which are LATE. The one that was decided before, if any."""

    def finish_fold(self, fold: FoldRecord, lease: Lease, cohort: CohortRecord) -> None:
        """The next model is there (`fold.checkpoint`, `fold.report`). Its updates are FOLDED, their bytes scrubbed."""

    def end_late(self, cohort: CohortId, late: Sequence[TaskId], lease: Lease) -> None:
        """What this cohort will not use is LATE and scrubbed, without a step; others of these stay as they are."""

    def folds(self, state: FoldState) -> list[FoldRecord]: ...

    def digest(self, digest: Digest) -> None:
        """A step that a cohort has begun when it ends is undone: its updates are free to move."""

    def federation(self) -> str | None:
        """The name of the coordinator's newest checkpoint."""

    def views(self) -> Mapping[DeviceId, Json]: ...

    def summaries(
        self, mechanism: str, subject: str | None = None, on_unreadable: Unreadable | None = None
    ) -> list[SummaryRecord]:
        """The newest of each device, unsealed."""

    def forget_answers(self, mechanism: str, subject: str) -> int:
        """Delete what devices said about a subject, because it was read; how many rows. Their receipts stay."""

    def feedback(self, devices: Sequence[DeviceId]) -> list[FeedbackRecord]:
        """What these devices have not been sent; it is theirs now and will not be given again."""


class Leases(Protocol):
    """Who may work at what. `LeaseLost` from any write that names a lease which is no longer the newest."""

    def acquire(self, name: str, holder: str, seconds: float, now_seconds: float) -> Lease | None:
        """The right to `name`, if nobody else has it now."""

    def renew(self, lease: Lease, seconds: float, now_seconds: float) -> Lease:
        """Hold on; `LeaseLost` if another has it."""

    def release(self, lease: Lease) -> None: ...

    def held(self) -> list[Lease]: ...


class Lookout(Protocol):
    """What people and the dashboard look at."""

    def happenings(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[Happening]:
        """Oldest first, from the one after number `after`."""

    def note(self, happening: Happening) -> None: ...

    def devices(self) -> list[DeviceRecord]: ...

    def refusals(self) -> Mapping[str, int]: ...

    def all_cohorts(self) -> list[CohortRecord]:
        """Those that are gone as well."""


class Store(Intake, Rounds, Leases, Lookout, Protocol):
    """All of it, and who is enrolled, and who is invited."""

    @property
    def register(self) -> Register: ...

    @property
    def invitations(self) -> InvitationStore: ...

    def sweep(self) -> int:
        """Delete what processes that died have left behind; how many updates that was."""

    def close(self) -> None: ...
