"""The ledger's file: one SQLite database that either has a transaction on disk, whole, or has nothing of it.

Write-ahead log, synced at every commit; each setting is read back, and one that did not take effect
is refused. A database that is damaged is `LedgerTampered`; a disk or lock that says no is
`LedgerUnavailable`, and if that happened inside a transaction this storage is dead: after a failed sync
the system may report the next one as done although the bytes are gone, so nobody writes on.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from privacy.durable_sqlite import DURABLE, SQLITE_ERRORS, file_identity, primary_code, refused_settings
from privacy.errors import LedgerTampered, LedgerUnavailable
from privacy.log_room import LogRoom

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TABLES: Final = {
    "entry": """CREATE TABLE entry (
        seq INTEGER PRIMARY KEY,
        body BLOB NOT NULL CHECK (typeof(body) = 'blob'),
        hash BLOB NOT NULL CHECK (typeof(hash) = 'blob'))""",
    "head": """CREATE TABLE head (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        seq INTEGER NOT NULL REFERENCES entry (seq),
        hash BLOB NOT NULL CHECK (typeof(hash) = 'blob'),
        signature BLOB NOT NULL CHECK (typeof(signature) = 'blob'))""",
    "answer": """CREATE TABLE answer (
        reserve INTEGER PRIMARY KEY REFERENCES entry (seq),
        sealed BLOB NOT NULL CHECK (typeof(sealed) = 'blob'))""",
    "countersignature": """CREATE TABLE countersignature (
        server BLOB PRIMARY KEY CHECK (typeof(server) = 'blob'),
        body BLOB NOT NULL CHECK (typeof(body) = 'blob')) WITHOUT ROWID""",
}
_SETTINGS: Final = {**DURABLE, "foreign_keys": 1, "cell_size_check": 1}
_UNAVAILABLE: Final = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_TOOBIG,
}
_NOT_NOW: Final = _UNAVAILABLE - {sqlite3.SQLITE_IOERR}
_REMEDY: Final = "look at the disk and at the permissions of the directory"
_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_BUSY: "let the process that holds it finish",
}
DECIDE: Final = (
    "the budget counts as exhausted until a person decides: "
    "covey privacy verify STATE --start-over --reason '...' --key-file FILE; nothing was released"
)


def tampered(what: str) -> LedgerTampered:
    """The one form of bad news about a ledger: what is wrong, and that a person must decide."""
    return LedgerTampered(f"the ledger cannot be believed: {what}; {DECIDE}")


@dataclass(frozen=True)
class Row:
    """One entry as it is stored."""

    sequence: int
    body: bytes
    digest: bytes


@dataclass(frozen=True)
class HeadRow:
    """The signed end of the chain as it is stored."""

    sequence: int
    digest: bytes
    signature: bytes


class LedgerStorage:
    """One connection. It is not shared between threads at the same time: `Ledger` holds a lock."""

    def __init__(self, path: Path, *, timeout_seconds: float, read_only: bool = False) -> None:
        self._path = path
        self._cause: str | None = None
        with _translated("opened"):
            self._connection = _connect(path, timeout_seconds, read_only=read_only)
            try:
                self._set_up(read_only=read_only)
            except BaseException:
                self._connection.close()
                raise
        self._identity = file_identity(path)
        self._room = LogRoom(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction, durable when this ends; after a failed one the storage is dead."""
        self._check_alive()
        with _translated("locked"):
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            # Under the lock: a person may have set this file aside and started a new one.
            self._check_in_place()
            self._room.make()
            yield
            self._connection.execute("COMMIT")
        except SQLITE_ERRORS as error:
            self._die(str(error))
            raise translated(error, "written") from error
        except BaseException:
            self._roll_back()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view, whoever writes meanwhile."""
        self._check_alive()
        with _translated("read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    def version(self) -> int:
        """Another number than before once another connection has written; the same after a commit of this one."""
        self._check_alive()
        try:
            number: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except SQLITE_ERRORS as error:
            raise translated(error, "read") from error
        return number

    def create_tables(self) -> None:
        for statement in _TABLES.values():
            self._connection.execute(statement)

    def is_blank(self) -> bool:
        """Whether creation got no further than the file itself."""
        return self._connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None

    def check_schema(self) -> None:
        """Raise `LedgerTampered` for a table, trigger, view or index that is not ours."""
        found = self._connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
        if dict(found) != _TABLES or len(found) != len(_TABLES):
            raise tampered("its tables were changed")

    def check_pages(self) -> None:
        """Let SQLite read every page; raise `LedgerTampered` for the first thing out of place."""
        for check in ("integrity_check", "foreign_key_check"):
            problems = [row for row in self._connection.execute(f"PRAGMA {check}") if row != ("ok",)]
            if problems:
                raise tampered("its file is damaged")

    def rows_after(self, sequence: int) -> Iterator[Row]:
        rows = self._connection.execute("SELECT seq, body, hash FROM entry WHERE seq > ? ORDER BY seq", (sequence,))
        return (Row(sequence, _blob(body), _blob(digest)) for sequence, body, digest in rows)

    def head(self) -> HeadRow | None:
        # SQLite checks constraints when it writes, and not at all on a read-only connection: look for yourself.
        rows = self._connection.execute("SELECT one, seq, hash, signature FROM head").fetchall()
        if not rows:
            return None
        one, sequence, digest, signature = rows[0]
        if len(rows) > 1 or one != 1 or not isinstance(sequence, int):
            raise tampered("its end is not one row")
        return HeadRow(sequence, _blob(digest), _blob(signature))

    def append(self, row: Row, signature: bytes) -> None:
        self._connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (row.sequence, row.body, row.digest))
        self._connection.execute(
            "INSERT OR REPLACE INTO head VALUES (1, ?, ?, ?)", (row.sequence, row.digest, signature)
        )

    def sign_end(self, signature: bytes) -> None:
        """Put another signature under the end that is there."""
        self._connection.execute("UPDATE head SET signature = ?", (signature,))

    def answer(self, reserve: int) -> bytes | None:
        row = self._connection.execute("SELECT sealed FROM answer WHERE reserve = ?", (reserve,)).fetchone()
        return None if row is None else _blob(row[0])

    def answered(self) -> list[int]:
        """The reservations whose answers are still kept."""
        return [row[0] for row in self._connection.execute("SELECT reserve FROM answer ORDER BY reserve")]

    def keep_answer(self, reserve: int, sealed: bytes) -> None:
        # Plain INSERT: a second answer to one reservation breaks the primary key, whoever tries.
        self._connection.execute("INSERT INTO answer VALUES (?, ?)", (reserve, sealed))

    def drop_answer(self, reserve: int) -> None:
        self._connection.execute("DELETE FROM answer WHERE reserve = ?", (reserve,))

    def countersignatures(self) -> dict[str, bytes]:
        rows = self._connection.execute("SELECT server, body FROM countersignature").fetchall()
        return {_blob(server).decode(): _blob(body) for server, body in rows}

    def keep_countersignature(self, server: str, body: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO countersignature VALUES (?, ?)", (server.encode(), body))

    def give_up(self, cause: str) -> None:
        """Write nothing more: what belongs beside a commit could not be written."""
        self._die(cause)

    def close(self) -> None:
        self._cause = self._cause or "it was closed"
        self._connection.close()

    def _set_up(self, *, read_only: bool) -> None:
        refused = refused_settings(self._connection, _SETTINGS, read_only=read_only)
        if refused:
            raise LedgerUnavailable(
                f"SQLite did not accept {', '.join(refused)}, without which a spend may be lost in a power cut; "
                "use a local file system and a complete SQLite; nothing was opened"
            )

    def _check_alive(self) -> None:
        if self._cause is not None:
            raise LedgerUnavailable(
                f"this ledger stopped working ({self._cause}); open it again to see what the disk holds; "
                "nothing was released"
            )

    def _check_in_place(self) -> None:
        if file_identity(self._path) != self._identity:
            raise LedgerUnavailable(
                "the ledger's file was replaced while it was open; open it again; nothing was booked or released"
            )

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except SQLITE_ERRORS as error:
            self._die(str(error))

    def _die(self, cause: str) -> None:
        self._cause = cause
        self._connection.close()


def surviving(path: Path, query: str, timeout_seconds: float) -> list[tuple[object, ...]]:
    """The rows that can still be read from a damaged file, each damaged place approached from both sides.

    A file that cannot be read *now* (locked, no access) is `LedgerUnavailable`: that is not damage.
    """
    found: dict[tuple[object, ...], None] = {}
    for order in ("ASC", "DESC"):
        try:
            with closing(_connect(path, timeout_seconds, read_only=True)) as connection:
                for row in connection.execute(f"{query} ORDER BY 1 {order}"):
                    found[row] = None
        except SQLITE_ERRORS as error:
            if primary_code(error) in _NOT_NOW:
                raise translated(error, "read") from error
    return list(found)


def translated(error: Exception, deed: str) -> LedgerTampered | LedgerUnavailable:
    """What an error of SQLite means for a ledger."""
    if primary_code(error) in _UNAVAILABLE:
        return LedgerUnavailable(
            f"the ledger could not be {deed} ({error}); {_REMEDIES.get(primary_code(error), _REMEDY)} and try again; "
            "nothing was released"
        )
    return tampered(f"its file is damaged ({error})")


@contextmanager
def _translated(deed: str) -> Iterator[None]:
    try:
        yield
    except SQLITE_ERRORS as error:
        raise translated(error, deed) from error


def _connect(path: Path, timeout_seconds: float, *, read_only: bool) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{_mode(path) if read_only else 'mode=rw'}",
        uri=True,
        timeout=timeout_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


def _mode(path: Path) -> str:
    """How to read only: SQLite keeps notes beside a database, unless told that nobody can write to it."""
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    fixed = not os.access(path.parent, os.W_OK) and not has_log
    return "mode=ro&immutable=1" if fixed else "mode=ro"


def _blob(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise tampered("a value is not of its type")
    return value
