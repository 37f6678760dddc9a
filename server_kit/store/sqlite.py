"""SQLite: one file beside the server, in WAL mode, synced at every commit, freed pages overwritten."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import NullPool, create_engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from privacy.durable import make_directory
from privacy.durable_sqlite import DURABLE, SQLITE_ERRORS, primary_code, refused_settings
from server_kit.errors import CorruptRecord, StoreConflict, StoreError, StoreUnavailable
from server_kit.store.database import LOCK_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from sqlalchemy import Engine

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


_PAUSE_SECONDS = 0.0005
_MOST_FAULTS = 20


class Sqlite:
    """A file; it is made if it is not there, private to this user."""

    errors = (*SQLITE_ERRORS, OSError)

    def __init__(self, path: Path) -> None:
        self._path = path
        self.dialect = SQLiteDialect_pysqlite(paramstyle="named")

    def connect(self) -> sqlite3.Connection:
        make_directory(self._path.parent)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self._path,
            timeout=LOCK_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            refused = refused_settings(connection, DURABLE)
        except BaseException:
            connection.close()
            raise
        if refused:
            connection.close()
            raise StoreUnavailable(
                f"SQLite did not accept {', '.join(refused)}, without which an update may be lost in a power cut; use "
                "a local file system and a complete SQLite; nothing was opened"
            )
        return connection

    def begin_reading(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")

    def begin_writing(self, connection: sqlite3.Connection) -> None:
        # SQLite itself would sleep for up to a tenth of a second between two looks at the lock.
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            _begin_immediately(connection)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000:.0f}")

    def engine(self) -> Engine:
        return create_engine("sqlite://", creator=self.connect, poolclass=NullPool)

    def damage(self, connection: sqlite3.Connection) -> list[str]:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_MOST_FAULTS})")]
        return [] if found == ["ok"] else [each.replace("\n", " ") for each in found]

    def meaning(self, error: Exception) -> StoreError:
        if isinstance(error, UnicodeDecodeError) or primary_code(error) in _DAMAGE:
            return CorruptRecord()
        if isinstance(error, sqlite3.IntegrityError):
            return StoreConflict(f"the store holds something else already ({error}); nothing was changed")
        return StoreUnavailable(
            f"the store's file could not be used ({getattr(error, 'strerror', None) or error}); look at the disk, its "
            "permissions and for a process that holds it, and try again; nothing was changed"
        )


def _begin_immediately(connection: sqlite3.Connection) -> None:
    """Immediately a writer: a transaction that begins by reading could not become one later."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
