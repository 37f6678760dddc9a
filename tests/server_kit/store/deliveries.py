"""Releases, tasks and cohorts as small as they can be. Whether they are signed is not the store's business."""

from __future__ import annotations

import hashlib
from pathlib import Path

from device_sdk.wire.messages import Blob, GridEncoding, SummaryHeader, Term, UpdateHeader
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.receipts import Receipt
from server_kit.daemon.register import EnrolledDevice
from server_kit.store.protocol import Arrival, CohortRecord, FoldRecord, Store, TaskRecord

COST = PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.ADD_REMOVE, pure_micro_epsilon=(1000,))


def name_of(number: int) -> str:
    return f"{number:032x}"


def key_of(device: str) -> bytes:
    return hashlib.sha256(device.encode()).digest()


def enrolled(device: str) -> EnrolledDevice:
    return EnrolledDevice(device, key_of(f"signing {device}"), key_of(device))


def receipt(device: str, sequence: int, content: bytes = b"") -> Receipt:
    return Receipt(
        ledger="ledger",
        device_key=key_of(device),
        server="server",
        sequence=sequence,
        mechanism="clipped_update",
        cost=COST,
        payload_hash=hashlib.sha256(content).hexdigest(),
        request="request",
        head=key_of(f"{device} {sequence}"),
        head_signature=bytes(64),
        signature=bytes(64),
    )


def update(
    device: str, task: str, sequence: int = 1, after: Receipt | None = None, content: bytes | Path = b"update"
) -> Arrival:
    body = content if isinstance(content, bytes) else content.read_bytes()
    own = receipt(device, sequence, body)
    blob = Blob(hashlib.sha256(body).digest(), len(body))
    header = UpdateHeader(task, "0", 1, bytes(32), blob, GridEncoding(1, 4), own.head, sequence, own.to_json())
    return Arrival(device, header, own, after, content)


def summary(
    device: str,
    subject: str = "epoch 1",
    sequence: int = 1,
    after: Receipt | None = None,
    *,
    content: bytes = b"histogram",
    mechanism: str = "label_histogram",
) -> Arrival:
    own = receipt(device, sequence, content)
    terms = (Term("labels", 10), Term("epsilon", "1/2"))
    blob = Blob(hashlib.sha256(content).digest(), len(content))
    header = SummaryHeader(mechanism, terms, subject, blob, own.head, sequence, own.to_json())
    return Arrival(device, header, own, after, content)


def task(name: str, device: str | None = None, cohort: str = "0") -> TaskRecord:
    return TaskRecord(name, device or name, cohort, 1, 0, 100.0, b"task " + name.encode())


def cohort(name: str = "0", version: int = 0, **facts: object) -> CohortRecord:
    return CohortRecord(name, version, version + 1, f"{name}-{version}", facts=dict(facts))


def fold(tasks: tuple[str, ...], version: int = 0, cohort: str = "0") -> FoldRecord:
    return FoldRecord(cohort, version, tasks, 200.0)


def content_of(store: Store, name: str) -> bytes:
    payload = store.payload(name)
    content = b"".join(payload.pieces())
    assert len(content) == payload.size_bytes
    return content
