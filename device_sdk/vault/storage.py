"""The vault's file: a SQLite database whose transactions are on disk whole, or not at all.

    part     header (clear), keys and index (sealed), by name
    record   sealed bytes by number; what a number stands for is known to the index alone

Write-ahead log, synced at every commit. Freed pages are overwritten. A damaged file is `VaultBroken`; a disk or a
lock that says no is `VaultUnavailable`, and if that happened while writing, this connection is given up: after a
failed sync the system may report the next one as done although the bytes are gone.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from device_sdk.errors import VaultBroken, VaultUnavailable
from privacy.durable_sqlite import DURABLE, SQLITE_ERRORS, file_identity, primary_code, refused_settings
from privacy.log_room import LogRoom

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_TIMEOUT_SECONDS = 10.0
_TABLES: Final = (
    "CREATE TABLE part (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID",
    # AUTOINCREMENT: the number of a record that is gone is not given to another.
    "CREATE TABLE record (number INTEGER PRIMARY KEY AUTOINCREMENT, sealed BLOB NOT NULL)",
)
_DAMAGE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}


class VaultStorage:
    """One connection; `Vault` lets one thread at a time use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._dead = False
        with _translated("opened"):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._set_up()
            except BaseException:
                self._connection.close()
                raise
        self._identity = file_identity(path)
        self._room = LogRoom(path)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view, whoever writes meanwhile."""
        self._check_usable()
        with _translated("read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction, durable when this ends."""
        self._check_usable()
        with _translated("locked"):
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._room.make()
            yield
            self._connection.execute("COMMIT")
        except SQLITE_ERRORS as error:
            self.close()
            raise _meaning(error, "written") from None
        except BaseException:
            self._roll_back()
            raise

    def version(self) -> int:
        """Another number than before once another connection has written; the same after a commit of this one."""
        self._check_usable()
        try:
            number: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except SQLITE_ERRORS as error:
            raise _meaning(error, "read") from None
        return number

    def is_blank(self) -> bool:
        """Whether creation got no further than the file itself."""
        return self._connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None

    def create_tables(self) -> None:
        for statement in _TABLES:
            self._connection.execute(statement)

    def part(self, name: str) -> bytes:
        return self._only("SELECT body FROM part WHERE name = ?", name)

    def set_part(self, name: str, body: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO part VALUES (?, ?)", (name, body))

    def record(self, number: int) -> bytes:
        with _translated("read"):  # damage to one record is not damage to all
            return self._only("SELECT sealed FROM record WHERE number = ?", number)

    def add_record(self, sealed: bytes) -> int:
        number = self._connection.execute("INSERT INTO record (sealed) VALUES (?)", (sealed,)).lastrowid
        assert number is not None  # noqa: S101 - an INSERT has a row
        return number

    def drop_record(self, number: int) -> None:
        self._connection.execute("DELETE FROM record WHERE number = ?", (number,))

    def empty_log(self) -> None:
        """Move everything out of the write-ahead log, so that old bytes do not stay there; a reader may delay it."""
        with _translated("tidied"):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._dead = True
        self._connection.close()

    def _only(self, query: str, key: str | int) -> bytes:
        row = self._connection.execute(query, (key,)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise VaultBroken
        body: bytes = row[0]
        return body

    def _set_up(self) -> None:
        if refused_settings(self._connection, DURABLE):
            raise VaultUnavailable(
                "SQLite did not accept the settings without which a record may be lost in a power cut; use a local "
                "file system and a complete SQLite; nothing was opened"
            )

    def _check_usable(self) -> None:
        if self._dead or file_identity(self._path) != self._identity:
            raise VaultUnavailable(
                "this vault was closed, failed while writing, or its file was replaced; open it again to see what the "
                "disk holds; nothing was changed"
            )

    def _roll_back(self) -> None:
        if not self._dead and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


@contextmanager
def _translated(deed: str) -> Iterator[None]:
    try:
        yield
    except (*SQLITE_ERRORS, OSError) as error:
        raise _meaning(error, deed) from None


def _meaning(error: Exception, deed: str) -> VaultBroken | VaultUnavailable:
    of_sqlite = isinstance(error, SQLITE_ERRORS) and hasattr(error, "sqlite_errorcode")
    if isinstance(error, UnicodeDecodeError) or (of_sqlite and primary_code(error) in _DAMAGE):
        return VaultBroken()
    return VaultUnavailable(
        f"the vault could not be {deed} ({getattr(error, 'strerror', None) or error}); look at the disk, at its "
        "permissions and for a process that holds it, and try again; nothing was changed"
    )
