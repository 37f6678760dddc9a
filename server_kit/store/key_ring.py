"""The keys that seal the rows of a store, themselves sealed in it under the key-encryption key.

    sealed value = number of its key (4 bytes) ‖ `privacy.sealing.seal`

The newest key seals, all of them open. Whoever writes looks first, in the same transaction, whether there is a newer
key; so once one is there nothing is sealed under an older one, and after one walk over all rows (`rotate`) the older
can go. A value opens in its own table, row and column only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, insert, select, update

from privacy.errors import SealBroken
from privacy.sealing import KEY_BYTES, open_sealed, place, seal
from server_kit.errors import CorruptRecord, StoreKeyRefused
from server_kit.store import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server_kit.store.database import Database, Row, Session
    from server_kit.store.keys import StoreKeys
    from server_kit.store.schema import SealedColumn

_TAG = "covey-store-v1"
_NUMBER_BYTES = 4
_TABLE = schema.sealing_keys
_NEWEST = select(_TABLE.c.id).order_by(_TABLE.c.id.desc()).limit(1)
_ROWS = select(_TABLE.c.id, _TABLE.c.sealed).order_by(_TABLE.c.id)
_ADD = insert(_TABLE)
_RESEAL = update(_TABLE).where(_TABLE.c.id == bindparam("of_id")).values(sealed=bindparam("new"))
_PREFIXES = {column: place(_TAG, column.table.name, column.column) for column in schema.SEALED}
_DROP = delete(_TABLE).where(_TABLE.c.id < bindparam("before"))


@dataclass(frozen=True)
class Sealer:
    """The newest key, for one transaction."""

    number: int
    key: bytes = field(repr=False)

    def seal(self, content: bytes, column: SealedColumn, *row: Any) -> bytes:
        """`content` for this column of the row with this primary key."""
        return self.number.to_bytes(_NUMBER_BYTES) + seal(self.key, content, _place(column, row))


class KeyRing:
    """What a process knows of the keys; it looks again when it meets one it does not know."""

    def __init__(self, database: Database, keys: StoreKeys) -> None:
        self._database, self._store_keys = database, keys
        # Those that were dropped too: a row that was read before may be opened after.
        self._known: dict[int, bytes] = {}

    def prepare(self) -> None:
        """At opening: make the first key; seal all under the current key-encryption key. Most often that is so."""
        with self._database.looking() as session:
            rows = session.all(_ROWS)
        if not rows or self._under_earlier(rows):
            with self._database.writing() as session:
                self._renew(session)
        with self._database.looking() as session:
            self._learn(session)

    def sealer(self, session: Session) -> Sealer:
        """What seals in the transaction of this session, and in no other."""
        (number,) = session.one(_NEWEST) or (0,)
        if number not in self._known:
            self._learn(session)
        return Sealer(number, self._known[number])

    def add(self, session: Session) -> int:
        """A new key, from now on the one that seals; its number."""
        (number,) = session.numbers("sealing key", 1)
        session.run(_ADD, id=number, sealed=self._sealed(number, os.urandom(KEY_BYTES)))
        # Not learned here: if this transaction fails, the next key of this number is another one.
        return number

    def drop_before(self, session: Session, number: int) -> None:
        """Forget keys that seal nothing any more."""
        session.run(_DROP, before=number)

    def open(self, sealed: object, column: SealedColumn, *row: Any) -> bytes:
        """What `Sealer.seal` was given for the same place; `CorruptRecord` for anything else."""
        if isinstance(sealed, bytes):
            key = self._key(key_number(sealed))
            try:
                if key is not None:
                    return open_sealed(key, sealed[_NUMBER_BYTES:], _place(column, row))
            except SealBroken:
                pass
        # Outside the handler: the cause would tell one failure from another.
        raise CorruptRecord

    def _key(self, number: int) -> bytes | None:
        if number not in self._known:
            with self._database.looking() as session:
                self._learn(session)
        return self._known.get(number)

    def _learn(self, session: Session) -> None:
        self._known |= {number: self._open_key(number, sealed) for number, sealed in session.all(_ROWS)}

    def _renew(self, session: Session) -> None:
        if not session.all(_ROWS):
            self.add(session)
        for number, sealed in self._under_earlier(session.all(_ROWS)):
            session.run(_RESEAL, of_id=number, new=self._sealed(number, self._open_key(number, sealed)))

    def _under_earlier(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if _opened(self._store_keys.current, *row) is None]

    def _sealed(self, number: int, key: bytes) -> bytes:
        return seal(self._store_keys.current, key, place(_TAG, "sealing key", number))

    def _open_key(self, number: int, sealed: bytes) -> bytes:
        for key in (self._store_keys.current, *self._store_keys.earlier):
            opened = _opened(key, number, sealed)
            if opened is not None:
                return opened
        raise StoreKeyRefused(
            "this key does not open the store: it is another store's, or the store was altered; use the key that the "
            "store was made with; nothing was opened"
        )


def key_number(sealed: bytes) -> int:
    """Under which key a value is sealed."""
    return int.from_bytes(sealed[:_NUMBER_BYTES])


def _opened(key: bytes, number: int, sealed: bytes) -> bytes | None:
    try:
        return open_sealed(key, sealed, place(_TAG, "sealing key", number))
    except SealBroken:
        return None


def _place(column: SealedColumn, row: tuple[Any, ...]) -> bytes:
    return _PREFIXES[column] + place(*(part.hex() if isinstance(part, bytes) else part for part in row))
