"""What a store can no longer read: pages of the database, values in rows, blobs that rows name. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from server_kit.errors import CorruptRecord, StoreConflict, StoreError
from server_kit.store import schema
from server_kit.store.parcels import ROW_OF_TASK, unpack
from server_kit.store.rotation import BATCH, named_row, statements
from server_kit.store.schema import SEALED

if TYPE_CHECKING:
    from server_kit.store.database import Backend, Row
    from server_kit.store.parts import Ground
    from server_kit.store.schema import SealedColumn

_IN_BLOBS = select(schema.payloads.c.task).where(schema.payloads.c.blob.is_not(None))


@dataclass(frozen=True)
class Examined:
    """What was found."""

    unreadable: Mapping[str, int]
    """By table: values that do not open."""
    lost: Sequence[str]
    """Tasks whose update lay in a blob that is missing or damaged."""


def damaged_pages(backend: Backend) -> list[str]:
    """What the database itself finds wrong with its pages; empty if all is well."""
    try:
        connection = backend.connect()
        try:
            return backend.damage(connection)
        finally:
            connection.close()
    except backend.errors as error:
        return [str(error) or type(error).__name__]


def examine(ground: Ground) -> Examined:
    """Open everything that is sealed, and read every blob that a row names."""
    unreadable = Counter({column.table.name: _unreadable(ground, column) for column in SEALED})
    return Examined(dict(+unreadable), list(_lost(ground)))


def _unreadable(ground: Ground, column: SealedColumn) -> int:
    return sum(not _opens(ground, column, row) for row in _rows(ground, column) if row[-1] is not None)


def _rows(ground: Ground, column: SealedColumn) -> Iterator[Row]:
    """All, some at a time."""
    first, following, _ = statements(column)
    after: Row | None = None
    while True:
        with ground.database.looking() as session:
            rows = session.all(first) if after is None else session.all(following, **named_row(column, after))
        yield from rows
        if len(rows) < BATCH:
            return
        after = rows[-1]


def _opens(ground: Ground, column: SealedColumn, row: Row) -> bool:
    *key, sealed = row
    try:
        ground.ring.open(sealed, column, *key)
    except CorruptRecord:
        return False
    return True


def _lost(ground: Ground) -> Iterator[str]:
    with ground.database.looking() as session:
        tasks = [task for (task,) in session.all(_IN_BLOBS)]
    for task in tasks:
        with ground.database.looking() as session:
            row = session.one(ROW_OF_TASK, of_task=task)
        if row is not None and not _is_whole(ground, task, row):
            yield task


def _is_whole(ground: Ground, task: str, row: Row) -> bool:
    try:
        for _ in unpack(ground, task, row).pieces():
            pass
    except StoreConflict:
        return True  # folded meanwhile
    except (StoreError, FileNotFoundError):
        return False
    return True
