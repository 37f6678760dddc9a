"""A store in memory: the plain meaning of `protocol`, for tests and for one process that may forget.

Every other store must be indistinguishable from this one, except that it remembers.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.wire.messages import CohortId, DeviceId, SummaryHeader, UpdateHeader
from server_kit.daemon.invitations import StoredInvitation
from server_kit.daemon.register import EnrolledDevice
from server_kit.store.protocol import (
    Arrival,
    Asking,
    CohortRecord,
    CohortState,
    DeviceRecord,
    Digest,
    FeedbackRecord,
    FoldRecord,
    FoldState,
    Happening,
    Json,
    Lease,
    Quota,
    SummaryRecord,
    TaskId,
    TaskRecord,
    TaskState,
    Unreadable,
)
from server_kit.store.quota import Held, excess
from server_kit.store.refusals import (
    asked_twice,
    check_ending,
    gone_on,
    lease_lost,
    no_bytes,
    not_begun,
    not_done,
    updates_taken,
)

if TYPE_CHECKING:
    from privacy.receipts import Receipt

WAITING = (TaskState.OUT, TaskState.ARRIVED)


class MemoryRegister:
    """Who is enrolled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self.devices: dict[DeviceId, EnrolledDevice] = {}
        self.since: dict[DeviceId, float] = {}

    def find(self, device: DeviceId) -> EnrolledDevice | None:
        return self.devices.get(device)

    def add(self, device: EnrolledDevice) -> EnrolledDevice:
        with self._mutex:
            self.since.setdefault(device.device, self._clock())
            return self.devices.setdefault(device.device, device)

    def revoke(self, device: DeviceId) -> bool:
        """Keep a device out from now on; False if it is not enrolled."""
        with self._mutex:
            if device not in self.devices:
                return False
            self.devices[device] = replace(self.devices[device], revoked=True)
            return True


class MemoryInvitations:
    """Who is invited."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._stored: dict[bytes, StoredInvitation] = {}

    def add(self, invitation: StoredInvitation) -> None:
        with self._mutex:
            self._stored[invitation.secret_sha256] = invitation

    def find(self, secret_sha256: bytes) -> StoredInvitation | None:
        return self._stored.get(secret_sha256)

    def claim(self, secret_sha256: bytes, device: DeviceId, now: datetime) -> StoredInvitation | None:
        with self._mutex:
            found = self._stored.get(secret_sha256)
            if found is not None and found.used_by is None and now < found.expires_at:
                found = self._stored[secret_sha256] = replace(found, used_by=device)
            return found


@dataclass(frozen=True)
class MemoryPayload:
    """The bytes of an update, all here already."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def pieces(self) -> Iterator[bytes]:
        yield self.content

    def part(self, start: int, stop: int) -> bytes:
        return self.content[start:stop]


class MemoryStore:
    """Everything in dictionaries under one lock. `clock` dates enrolments."""

    def __init__(self, clock: Callable[[], float] = time.time, quota: Quota | None = None) -> None:
        self._mutex, self._quota = threading.RLock(), quota or Quota()
        self._register = MemoryRegister(clock)
        self._invitations = MemoryInvitations()
        self._receipts: dict[bytes, dict[int, tuple[DeviceId, Receipt]]] = {}
        self._tasks: dict[TaskId, TaskRecord] = {}
        self._payloads: dict[TaskId, bytes] = {}
        self._claims: dict[TaskId, tuple[CohortId, int]] = {}
        self._arrivals = 0
        self._summaries: dict[tuple[DeviceId, str, str], SummaryRecord] = {}
        self._cohorts: dict[CohortId, CohortRecord] = {}
        self._folds: dict[tuple[CohortId, int], FoldRecord] = {}
        self._federation: str | None = None
        self._views: dict[DeviceId, Json] = {}
        self._feedback: list[FeedbackRecord] = []
        self._happenings: list[Happening] = []
        self._leases: dict[str, Lease] = {}
        self._refusals: Counter[str] = Counter()
        self._refused: dict[DeviceId, Counter[str]] = {}
        self._seen: dict[DeviceId, float] = {}

    @property
    def register(self) -> MemoryRegister:
        return self._register

    @property
    def invitations(self) -> MemoryInvitations:
        return self._invitations

    def sweep(self) -> int:
        """Nothing outlives the process."""
        return 0

    def close(self) -> None:
        """Nothing is open."""

    # What the gateway stores

    def accept(self, arrivals: Sequence[Arrival], now_seconds: float) -> list[bool]:
        with self._mutex:
            return [self._accept(arrival, now_seconds) for arrival in arrivals]

    def _accept(self, arrival: Arrival, now_seconds: float) -> bool:
        receipt, header = arrival.receipt, arrival.header
        newest = self.last_receipt(receipt.device_key)
        if newest != arrival.after or (newest is not None and receipt.sequence <= newest.sequence):
            return False
        content = arrival.payload if isinstance(arrival.payload, bytes) else arrival.payload.read_bytes()
        self._receipts.setdefault(receipt.device_key, {})[receipt.sequence] = (arrival.device, receipt)
        if isinstance(header, UpdateHeader):
            self._keep_update(arrival.device, header, content, now_seconds)
        else:
            self._keep_summary(arrival.device, header, content, now_seconds)
        if isinstance(arrival.payload, Path):
            arrival.payload.unlink()
        return True

    def _keep_update(self, device: DeviceId, header: UpdateHeader, content: bytes, now_seconds: float) -> None:
        task = self._tasks.get(header.task)
        if task is None or task.device != device:
            return
        if task.state is TaskState.OUT:
            self._payloads[task.task] = content
            state, message = TaskState.ARRIVED, task.message
        elif task.state in (TaskState.LOST, TaskState.DECLINED):
            state, message = TaskState.LATE, b""
        else:
            return
        self._arrivals += 1
        self._tasks[task.task] = replace(
            task, state=state, message=message, arrival=self._arrivals, arrived_at_seconds=now_seconds
        )

    def _keep_summary(self, device: DeviceId, header: SummaryHeader, content: bytes, now_seconds: float) -> None:
        terms = {term.name: term.value for term in header.terms}
        key = (device, header.mechanism, header.subject)
        # Taken out first, so that the order is that of arrival.
        self._summaries.pop(key, None)
        self._summaries[key] = SummaryRecord(device, header.mechanism, terms, header.subject, content, now_seconds)
        self._drop_excess(device)

    def _drop_excess(self, device: DeviceId) -> None:
        keys = [key for key in self._summaries if key[0] == device]
        held = [Held(key[1], place, len(self._summaries[key].payload)) for place, key in enumerate(keys)]
        for place in excess(held, self._quota):
            del self._summaries[keys[place]]

    def last_receipt(self, device_key: bytes) -> Receipt | None:
        with self._mutex:
            held = self._receipts.get(device_key)
            return held[max(held)][1] if held else None

    def find_receipt(self, device_key: bytes, sequence: int) -> Receipt | None:
        with self._mutex:
            found = self._receipts.get(device_key, {}).get(sequence)
            return None if found is None else found[1]

    def receipts_of(self, device_key: bytes, on_unreadable: Unreadable | None = None) -> list[Receipt]:
        del on_unreadable  # what was never bytes can be read
        with self._mutex:
            held = self._receipts.get(device_key, {})
            return [held[sequence][1] for sequence in sorted(held)]

    def receipts(self, on_unreadable: Unreadable | None = None) -> Iterator[Receipt]:
        del on_unreadable
        with self._mutex:
            found = [receipt for held in self._receipts.values() for _, receipt in held.values()]
        return iter(sorted(found, key=lambda receipt: (receipt.device_key, receipt.sequence)))

    def device_of(self, device_key: bytes) -> DeviceId | None:
        with self._mutex:
            held = self._receipts.get(device_key)
            return held[max(held)][0] if held else None

    def count_refusal(self, reason: str, device: DeviceId | None, now_seconds: float) -> None:
        self.count_refusals({(reason, device): 1}, now_seconds)

    def count_refusals(self, counts: Mapping[tuple[str, DeviceId | None], int], now_seconds: float) -> None:
        del now_seconds
        with self._mutex:
            for (reason, device), times in counts.items():
                self._refusals[reason] += times
                if device is not None and self._register.find(device) is not None:
                    self._refused.setdefault(device, Counter())[reason] += times

    def seen(self, devices: Sequence[DeviceId], now_seconds: float) -> None:
        with self._mutex:
            self._seen |= {device: now_seconds for device in devices if self._register.find(device) is not None}

    # What coordinator and workers store

    def cohorts(self) -> list[CohortRecord]:
        return [cohort for cohort in self.all_cohorts() if cohort.state is CohortState.TRAINING]

    def tasks(self, cohort: CohortId | None = None, *states: TaskState) -> list[TaskRecord]:
        with self._mutex:
            found = [
                task
                for task in self._tasks.values()
                if task.state in (states or WAITING) and cohort in (None, task.cohort)
            ]
        # A stable sort: what has not arrived stays in the order of asking.
        return sorted(found, key=lambda task: (task.arrival is None, task.arrival or 0))

    def task(self, task: TaskId) -> TaskRecord | None:
        with self._mutex:
            return self._tasks.get(task)

    def ask(self, asking: Asking) -> None:
        names = [task.task for task in asking.tasks]
        with self._mutex:
            if len(set(names)) < len(names) or any(name in self._tasks for name in names):
                raise asked_twice()
            self._check_versions(asking.cohorts)
            self._tasks |= {task.task: task for task in asking.tasks}
            self._keep_cohorts(asking.cohorts)
            for name in asking.lost:
                self._move(name, TaskState.OUT, TaskState.LOST)

    def end_task(self, task: TaskId, state: TaskState) -> bool:
        check_ending(state)
        with self._mutex:
            return self._move(task, TaskState.OUT, state)

    def payload(self, task: TaskId) -> MemoryPayload:
        with self._mutex:
            if task not in self._payloads:
                raise no_bytes(task)
            return MemoryPayload(self._payloads[task])

    def begin_fold(self, fold: FoldRecord, late: Sequence[TaskId], lease: Lease) -> FoldRecord:
        key = (fold.cohort, fold.version)
        with self._mutex:
            self._check(lease)
            if key in self._folds:
                return self._folds[key]
            taken = [name for name in fold.tasks if not self._is_free(name, fold.cohort)]
            if taken or len(set(fold.tasks)) < len(fold.tasks):
                raise updates_taken(fold.cohort)
            self._claims |= dict.fromkeys(fold.tasks, key)
            self._end_late(fold.cohort, late)
            begun = self._folds[key] = replace(fold, state=FoldState.BEGUN, checkpoint="", report="")
            return begun

    def finish_fold(self, fold: FoldRecord, lease: Lease, cohort: CohortRecord) -> None:
        key = (fold.cohort, fold.version)
        with self._mutex:
            self._check(lease)
            begun = self._folds.get(key)
            if begun is None or begun.state is not FoldState.BEGUN:
                raise not_begun(fold)
            self._check_versions([cohort])
            self._folds[key] = replace(begun, state=FoldState.DONE, checkpoint=fold.checkpoint, report=fold.report)
            for name in begun.tasks:
                self._scrub(name, TaskState.FOLDED)
            self._keep_cohorts([cohort])

    def end_late(self, cohort: CohortId, late: Sequence[TaskId], lease: Lease) -> None:
        with self._mutex:
            self._check(lease)
            self._end_late(cohort, late)

    def folds(self, state: FoldState) -> list[FoldRecord]:
        with self._mutex:
            return [fold for fold in self._folds.values() if fold.state is state]

    def digest(self, digest: Digest) -> None:
        with self._mutex:
            if digest.step is not None:
                step = self._folds.get(digest.step)
                if step is None or step.state is not FoldState.DONE:
                    raise not_done(digest.step)
            self._check_versions(digest.cohorts)
            if digest.step is not None:
                self._folds[digest.step] = replace(self._folds[digest.step], state=FoldState.DIGESTED)
            self._federation = digest.federation
            self._keep_cohorts(digest.cohorts)
            self._undo({each.cohort for each in digest.cohorts if each.state is not CohortState.TRAINING})
            for name, state in digest.ended.items():
                if name in self._payloads and name not in self._claims:
                    self._scrub(name, state)
            for name, cohort in digest.moved.items():
                if name in self._tasks and name not in self._claims:
                    self._tasks[name] = replace(self._tasks[name], cohort=cohort)
            self._views |= {device: _as_read(view) for device, view in digest.views.items()}
            self._feedback += digest.feedback
            for happening in digest.happenings:
                self.note(happening)

    def federation(self) -> str | None:
        return self._federation

    def views(self) -> Mapping[DeviceId, Json]:
        with self._mutex:
            return {device: _as_read(self._views[device]) for device in sorted(self._views)}

    def summaries(
        self, mechanism: str, subject: str | None = None, on_unreadable: Unreadable | None = None
    ) -> list[SummaryRecord]:
        del on_unreadable
        with self._mutex:
            newest = {
                summary.device: summary
                for summary in self._summaries.values()
                if summary.mechanism == mechanism and subject in (None, summary.subject)
            }
        return [newest[device] for device in sorted(newest)]

    def forget_answers(self, mechanism: str, subject: str) -> int:
        with self._mutex:
            about = [key for key in self._summaries if key[1:] == (mechanism, subject)]
            for key in about:
                del self._summaries[key]
            return len(about)

    def feedback(self, devices: Sequence[DeviceId]) -> list[FeedbackRecord]:
        with self._mutex:
            given = [record for record in self._feedback if record.device in devices]
            self._feedback = [record for record in self._feedback if record.device not in devices]
            return given

    # Who may work at what

    def acquire(self, name: str, holder: str, seconds: float, now_seconds: float) -> Lease | None:
        with self._mutex:
            last = self._leases.get(name)
            if last is not None and last.holder not in ("", holder) and now_seconds < last.until_seconds:
                return None
            epoch = 1 if last is None else last.epoch + 1
            lease = self._leases[name] = Lease(name, holder, epoch, now_seconds + seconds)
            return lease

    def renew(self, lease: Lease, seconds: float, now_seconds: float) -> Lease:
        with self._mutex:
            self._check(lease)
            renewed = self._leases[lease.name] = replace(lease, until_seconds=now_seconds + seconds)
            return renewed

    def release(self, lease: Lease) -> None:
        with self._mutex:
            if self._is_newest(lease):
                # Its epoch stays, so that the next holder's is higher.
                self._leases[lease.name] = replace(lease, holder="", until_seconds=0.0)

    def held(self) -> list[Lease]:
        with self._mutex:
            return [self._leases[name] for name in sorted(self._leases) if self._leases[name].holder]

    # What people look at

    def happenings(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[Happening]:
        with self._mutex:
            return [one for one in self._happenings[after:] if kind in (None, one.kind)][:limit]

    def note(self, happening: Happening) -> None:
        with self._mutex:
            number = len(self._happenings) + 1
            self._happenings.append(replace(happening, facts=_as_read(happening.facts), number=number))

    def devices(self) -> list[DeviceRecord]:
        with self._mutex:
            releases = Counter(device for held in self._receipts.values() for device, _ in held.values())
            return [
                DeviceRecord(
                    device=name,
                    enrolled_at_seconds=self._register.since[name],
                    last_seen_seconds=self._seen.get(name),
                    revoked=self._register.devices[name].revoked,
                    refusals=dict(self._refused.get(name, {})),
                    releases=releases[name],
                )
                for name in sorted(self._register.devices)
            ]

    def refusals(self) -> Mapping[str, int]:
        with self._mutex:
            return dict(self._refusals)

    def all_cohorts(self) -> list[CohortRecord]:
        with self._mutex:
            return [self._cohorts[name] for name in sorted(self._cohorts)]

    # Steps that several of the above share

    def _check_versions(self, cohorts: Iterable[CohortRecord]) -> None:
        for cohort in cohorts:
            known = self._cohorts.get(cohort.cohort)
            if known is not None and known.version > cohort.version:
                raise gone_on(cohort.cohort)

    def _undo(self, cohorts: set[CohortId]) -> None:
        """Forget the steps that these cohorts have begun and will not finish."""
        for key, fold in list(self._folds.items()):
            if fold.state is FoldState.BEGUN and fold.cohort in cohorts:
                del self._folds[key]
                for name in fold.tasks:
                    del self._claims[name]

    def _keep_cohorts(self, cohorts: Iterable[CohortRecord]) -> None:
        self._cohorts |= {cohort.cohort: replace(cohort, facts=_as_read(cohort.facts)) for cohort in cohorts}

    def _move(self, name: TaskId, before: TaskState, after: TaskState) -> bool:
        task = self._tasks.get(name)
        if task is None or task.state is not before:
            return False
        self._tasks[name] = replace(task, state=after)
        return True

    def _is_free(self, name: TaskId, cohort: CohortId) -> bool:
        task = self._tasks.get(name)
        waits = task is not None and task.state is TaskState.ARRIVED and task.cohort == cohort
        return waits and name not in self._claims

    def _end_late(self, cohort: CohortId, late: Sequence[TaskId]) -> None:
        for name in late:
            if self._is_free(name, cohort):
                self._scrub(name, TaskState.LATE)

    def _scrub(self, name: TaskId, state: TaskState) -> None:
        del self._payloads[name]
        self._tasks[name] = replace(self._tasks[name], state=state, message=b"")

    def _is_newest(self, lease: Lease) -> bool:
        newest = self._leases.get(lease.name)
        return newest is not None and (newest.holder, newest.epoch) == (lease.holder, lease.epoch)

    def _check(self, lease: Lease) -> None:
        if not self._is_newest(lease):
            raise lease_lost(lease)


def _as_read(facts: Mapping[str, object]) -> Json:
    """As JSON gives it back, and shared with nobody."""
    read: Json = json.loads(json.dumps(facts))
    return read
