"""Which of the releases at hand are new, decided in one transaction: looked up at once, and written at once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import bindparam, insert, update

from device_sdk.wire.messages import UpdateHeader
from server_kit.store import schema
from server_kit.store.parts import as_text
from server_kit.store.protocol import TaskState
from server_kit.store.quota import drop_excess
from server_kit.store.schema import RECEIPT_BODY, SUMMARY_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_sdk.wire.messages import DeviceId, SummaryHeader
    from privacy.receipts import Receipt
    from server_kit.store.database import Session
    from server_kit.store.key_ring import Sealer
    from server_kit.store.parcels import Parcel
    from server_kit.store.protocol import Arrival, Quota, TaskId

_NEWEST, _TASKS = schema.newest_receipts, schema.tasks
_KEEP_RECEIPT = insert(schema.receipts)
_KEEP_PAYLOAD = insert(schema.payloads)
_ARRIVED = (
    update(_TASKS)
    .where(_TASKS.c.task == bindparam("of_task"))
    .values(state=bindparam("to"), arrival=bindparam("number"), arrived_at_seconds=bindparam("at"))
)
_LATE = _ARRIVED.values(message=b"")
_BECOMES = {
    TaskState.OUT: TaskState.ARRIVED,
    TaskState.LOST: TaskState.LATE,
    TaskState.DECLINED: TaskState.LATE,
}


class _Newest(NamedTuple):
    """A row of `newest_receipts`."""

    device_key: bytes
    device: str
    sequence: int
    digest: bytes
    receipts: int


class Acceptance:
    """The releases of one transaction."""

    def __init__(
        self, session: Session, sealer: Sealer, arrivals: Sequence[Arrival], now_seconds: float, quota: Quota
    ) -> None:
        self._session, self._sealer, self._now_seconds, self._quota = session, sealer, now_seconds, quota
        keys = [arrival.receipt.device_key for arrival in arrivals]
        tasks = [arrival.header.task for arrival in arrivals if isinstance(arrival.header, UpdateHeader)]
        newest = session.where_in(_NEWEST.c.device_key, keys, *_NEWEST.c)
        known = session.where_in(_TASKS.c.task, tasks, _TASKS.c.task, _TASKS.c.device, _TASKS.c.state)
        self._newest: dict[bytes, _Newest] = {row[0]: _Newest(*row) for row in newest}
        self._tasks: dict[TaskId, tuple[DeviceId, TaskState]] = {
            task: (device, TaskState(state)) for task, device, state in known
        }
        self._receipts: list[dict[str, Any]] = []
        self._payloads: list[dict[str, Any]] = []
        self._summaries: dict[tuple[str, ...], dict[str, Any]] = {}
        self._moved: dict[TaskId, TaskState] = {}
        self.blobs: set[str] = set()
        """Those that rows will name."""

    def add(self, arrival: Arrival, parcel: Parcel) -> bool:
        """Take a release, if its receipt follows the newest."""
        receipt, after = arrival.receipt, arrival.after
        newest = self._newest.get(receipt.device_key)
        if (newest and newest[2:4]) != (after and (after.sequence, _digest(after))):
            return False
        if newest is not None and receipt.sequence <= newest.sequence:
            return False
        self._keep_receipt(arrival)
        if isinstance(arrival.header, UpdateHeader):
            self._keep_update(arrival.device, arrival.header.task, parcel)
        else:
            self._keep_summary(arrival.device, arrival.header, parcel)
        return True

    def write(self) -> None:
        session, kept = self._session, self._receipts
        session.many(_KEEP_RECEIPT, kept)
        session.replace(_NEWEST, [self._newest[key]._asdict() for key in {row["device_key"] for row in kept}])
        session.many(_KEEP_PAYLOAD, self._payloads)
        self._write_tasks()
        numbers = session.numbers("summary", len(self._summaries))
        rows = [{**row, "number": number} for row, number in zip(self._summaries.values(), numbers, strict=True)]
        session.replace(schema.summaries, rows)
        drop_excess(session, {row["device"] for row in rows}, self._quota)

    def _keep_receipt(self, arrival: Arrival) -> None:
        receipt = arrival.receipt
        before = self._newest.get(receipt.device_key)
        self._newest[receipt.device_key] = _Newest(
            receipt.device_key, arrival.device, receipt.sequence, _digest(receipt), before.receipts + 1 if before else 1
        )
        self._receipts.append(
            {
                "device_key": receipt.device_key,
                "sequence": receipt.sequence,
                "device": arrival.device,
                "body": self._sealer.seal(receipt.to_json(), RECEIPT_BODY, receipt.device_key, receipt.sequence),
            }
        )

    def _keep_update(self, device: DeviceId, task: TaskId, parcel: Parcel) -> None:
        owner, state = self._tasks.get(task, ("", TaskState.FOLDED))
        if owner != device or state not in _BECOMES:
            return
        self._tasks[task] = (device, _BECOMES[state])
        self._moved[task] = _BECOMES[state]
        if state is TaskState.OUT:
            self._payloads.append(parcel.row(self._sealer, task))
            self.blobs |= {parcel.blob} - {""}

    def _keep_summary(self, device: DeviceId, header: SummaryHeader, parcel: Parcel) -> None:
        key = (device, header.mechanism, header.subject)
        # Taken out first, so that the order is that of arrival.
        self._summaries.pop(key, None)
        self._summaries[key] = {
            "device": device,
            "mechanism": header.mechanism,
            "subject": header.subject,
            "terms": as_text({term.name: term.value for term in header.terms}),
            "payload": self._sealer.seal(parcel.content, SUMMARY_PAYLOAD, *key),
            "at_seconds": self._now_seconds,
        }

    def _write_tasks(self) -> None:
        numbers = self._session.numbers("arrival", len(self._moved))
        rows = [
            {"of_task": task, "to": state, "number": number, "at": self._now_seconds}
            for (task, state), number in zip(self._moved.items(), numbers, strict=True)
        ]
        self._session.many(_ARRIVED, [row for row in rows if row["to"] is TaskState.ARRIVED])
        self._session.many(_LATE, [row for row in rows if row["to"] is TaskState.LATE])


def _digest(receipt: Receipt) -> bytes:
    """Which receipt it is: the ledger's hash of its entry, and the device's signature of all the rest."""
    return hashlib.sha256(receipt.head + receipt.signature + receipt.payload_hash.encode()).digest()
