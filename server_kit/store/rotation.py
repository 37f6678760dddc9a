"""Rotation: a new key, every value sealed under it, the old keys dropped; in small transactions, while others work.

Killed in the middle it leaves values under two keys, both of which open; the next rotation ends it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select, tuple_, update

from server_kit.errors import CorruptRecord
from server_kit.store.key_ring import key_number
from server_kit.store.schema import SEALED

if TYPE_CHECKING:
    from sqlalchemy.sql import ClauseElement

    from server_kit.store.database import Row
    from server_kit.store.key_ring import KeyRing, Sealer
    from server_kit.store.parts import Ground
    from server_kit.store.schema import SealedColumn

BATCH = 200


def rotate(ground: Ground) -> int:
    """Returns how many values were sealed anew."""
    with ground.database.writing() as session:
        number = ground.ring.add(session)
    resealed = sum(_walk(ground, column, number) for column in SEALED)
    with ground.database.writing() as session:
        # A later rotation that has begun meanwhile drops its own.
        ground.ring.drop_before(session, number)
    return resealed


def _walk(ground: Ground, column: SealedColumn, number: int) -> int:
    """Seal one column anew, by primary key. Rows that others add meanwhile are sealed under the new key already."""
    first, following, store = statements(column)
    resealed, after = 0, None
    while True:
        with ground.database.writing() as session:
            sealer = ground.ring.sealer(session)
            rows = session.all(first) if after is None else session.all(following, **named_row(column, after))
            old = [row for row in rows if row[-1] is not None and key_number(row[-1]) < number]
            renewed = [(row, _resealed(ground.ring, sealer, column, row)) for row in old]
            session.many(store, [{**named_row(column, row), "new": new} for row, new in renewed if new is not None])
        resealed += len(old)
        if len(rows) < BATCH:
            return resealed
        after = rows[-1]


@cache
def statements(column: SealedColumn) -> tuple[ClauseElement, ClauseElement, ClauseElement]:
    """By primary key: the first rows of its table, those after one, and the storing of a new value."""
    table, body = column.table, column.table.c[column.column]
    keys = [table.c[name] for name in column.keys]
    binds: list[Any] = [bindparam(f"of_{name}") for name in column.keys]
    first = select(*keys, body).order_by(*keys).limit(BATCH)
    store = update(table).where(*(key == bind for key, bind in zip(keys, binds, strict=True)))
    return first, first.where(tuple_(*keys) > tuple_(*binds)), store.values({column.column: bindparam("new")})


def _resealed(ring: KeyRing, sealer: Sealer, column: SealedColumn, row: Row) -> bytes | None:
    """A value that does not open stays one that does not open."""
    *key, sealed = row
    try:
        return sealer.seal(ring.open(sealed, column, *key), column, *key)
    except CorruptRecord:
        return None


def named_row(column: SealedColumn, row: Row) -> dict[str, Any]:
    """What these statements call the keys of a row."""
    return {f"of_{name}": value for name, value in zip(column.keys, row, strict=False)}
