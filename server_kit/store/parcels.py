"""The bytes of updates: small ones in their row, large ones in a sealed blob that is durable before its row.

A blob without a row is an orphan: its process died, or its transaction failed. `sweep` deletes those that are older
than any transaction could be. Deciding is safe because both sides hold the writer's lock when they look: a row
is only written if its blob is still there, and a blob only deleted if no row names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, select

from device_sdk.wire.messages import SummaryHeader
from privacy.sealing import KEY_BYTES
from server_kit.errors import CorruptRecord, StoreUnavailable
from server_kit.store import schema
from server_kit.store.blobs import LocalBlobs
from server_kit.store.refusals import no_bytes
from server_kit.store.schema import PAYLOAD_BLOB_KEY, PAYLOAD_BODY
from server_kit.store.sealed_pieces import opened_part, opened_pieces, sealed_pieces

if TYPE_CHECKING:
    from server_kit.store.blobs import Blobs
    from server_kit.store.database import Row, Session
    from server_kit.store.key_ring import Sealer
    from server_kit.store.parts import Ground
    from server_kit.store.protocol import Arrival, TaskId

LARGE_BYTES = 256 << 10
ORPHAN_SECONDS = 600.0
_FOLDER = "updates/"
_TABLE = schema.payloads
ROW_OF_TASK = select(_TABLE.c.size_bytes, _TABLE.c.body, _TABLE.c.blob, _TABLE.c.blob_key).where(
    _TABLE.c.task == bindparam("of_task")
)
_DROP = delete(_TABLE).where(_TABLE.c.task == bindparam("of_task"))


@dataclass(frozen=True)
class Parcel:
    """The bytes of one update, ready for its row: as they are, or already in a blob under a key of its own."""

    size_bytes: int
    content: bytes = field(default=b"", repr=False)
    blob: str = ""
    blob_key: bytes = field(default=b"", repr=False)

    def row(self, sealer: Sealer, task: TaskId) -> dict[str, Any]:
        """The row of `payloads`."""
        if self.blob:
            sealed_key = sealer.seal(self.blob_key, PAYLOAD_BLOB_KEY, task)
            return _row(task, self.size_bytes, blob=self.blob, blob_key=sealed_key)
        return _row(task, self.size_bytes, body=sealer.seal(self.content, PAYLOAD_BODY, task))


@dataclass(frozen=True)
class InlinePayload:
    """A payload that stood in its row."""

    content: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def pieces(self) -> Iterator[bytes]:
        yield self.content

    def part(self, start: int, stop: int) -> bytes:
        return self.content[start:stop]


@dataclass(frozen=True)
class BlobPayload:
    """A payload that is opened as it is read."""

    ground: Ground
    task: TaskId
    key: bytes = field(repr=False)
    name: str
    size_bytes: int

    def pieces(self) -> Iterator[bytes]:
        with self._unless_folded():
            yield from opened_pieces(self.ground.blobs, self.key, self.name, self.size_bytes)

    def part(self, start: int, stop: int) -> bytes:
        with self._unless_folded():
            return opened_part(self.ground.blobs, self.key, self.name, self.size_bytes, (start, stop))

    @contextmanager
    def _unless_folded(self) -> Iterator[None]:
        try:
            yield
        except CorruptRecord:
            # Not corrupt if another worker has folded it meanwhile: this one has lost its lease.
            with self.ground.database.looking() as session:
                if session.one(ROW_OF_TASK, of_task=self.task) is None:
                    raise no_bytes(self.task) from None
            raise


def pack(blobs: Blobs, arrival: Arrival, now_seconds: float) -> Parcel:
    """Bring the bytes as far as they can be without a transaction. Summaries are small: they stay in their rows."""
    content = arrival.payload
    size_bytes = content.stat().st_size if isinstance(content, Path) else len(content)
    if size_bytes <= LARGE_BYTES or isinstance(arrival.header, SummaryHeader):
        return Parcel(size_bytes, content.read_bytes() if isinstance(content, Path) else content)
    name = f"{_FOLDER}{max(0, int(now_seconds)):012}-{os.urandom(8).hex()}"
    key = os.urandom(KEY_BYTES)
    blobs.put(name, sealed_pieces(content, key, name))
    return Parcel(size_bytes, blob=name, blob_key=key)


def check_there(blobs: Blobs, names: Iterable[str]) -> None:
    """In the transaction that writes their rows: nobody has taken these blobs for orphans."""
    if not all(map(blobs.exists, names)):
        raise StoreUnavailable(
            "an update waited so long to be stored that its bytes were swept away; send it again; nothing was stored"
        )


def unpack(ground: Ground, task: TaskId, row: Row) -> InlinePayload | BlobPayload:
    """What can be read of a row of `payloads`."""
    size_bytes, body, blob, blob_key = row
    if blob is None:
        return InlinePayload(ground.ring.open(body, PAYLOAD_BODY, task))
    return BlobPayload(ground, task, ground.ring.open(blob_key, PAYLOAD_BLOB_KEY, task), blob, size_bytes)


def scrub(session: Session, tasks: Sequence[TaskId]) -> list[str]:
    """Forget the bytes of these; returns the blobs to be deleted once that is committed."""
    blobs = [blob for (blob,) in session.where_in(_TABLE.c.task, tasks, _TABLE.c.blob) if blob is not None]
    session.many(_DROP, [{"of_task": task} for task in tasks])
    return blobs


def discard(blobs: Blobs, names: Iterable[str]) -> None:
    """Delete blobs that no row names. What cannot be deleted now is left to `sweep`: the transaction stands."""
    for name in names:
        if name:
            with suppress(StoreUnavailable):
                blobs.delete(name)


def sweep(ground: Ground, now_seconds: float, older_than_seconds: float = ORPHAN_SECONDS) -> int:
    """Delete orphans; returns how many."""
    if isinstance(ground.blobs, LocalBlobs):
        ground.blobs.drop_drafts(older_than_seconds)
    oldest = f"{_FOLDER}{max(0, int(now_seconds - older_than_seconds)):012}"
    candidates = [name for name in ground.blobs.list(_FOLDER) if name < oldest]
    if not candidates:
        return 0
    with ground.database.writing() as session:
        named = {blob for (blob,) in session.where_in(_TABLE.c.blob, candidates, _TABLE.c.blob)}
        orphans = [name for name in candidates if name not in named]
        for name in orphans:
            ground.blobs.delete(name)
    return len(orphans)


def _row(
    task: TaskId, size_bytes: int, body: bytes | None = None, blob: str | None = None, blob_key: bytes | None = None
) -> dict[str, Any]:
    return {"task": task, "size_bytes": size_bytes, "body": body, "blob": blob, "blob_key": blob_key}
