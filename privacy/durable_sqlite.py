"""What makes a SQLite file durable, for all that must not be lost: the ledger, and a device's vault.

Write-ahead log, synced at every commit. Each setting is read back: SQLite ignores in silence what it does not know.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

DURABLE: Final = {
    "synchronous": 2,  # FULL: the log is synced at every commit
    "fullfsync": 1,  # macOS: a plain fsync leaves the bytes in the drive's cache
    "checkpoint_fullfsync": 1,
    "secure_delete": 1,
    "trusted_schema": 0,
}
# A damaged schema can stand in SQLite's error message, which Python then fails to decode.
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


def refused_settings(
    connection: sqlite3.Connection, settings: Mapping[str, int], *, read_only: bool = False
) -> list[str]:
    """Set these and the write-ahead log; the names of those that did not take effect."""
    mode = connection.execute(f"PRAGMA journal_mode{'' if read_only else ' = WAL'}").fetchone()
    for name, value in settings.items():
        connection.execute(f"PRAGMA {name} = {value}")
    refused = [name for name, value in settings.items() if connection.execute(f"PRAGMA {name}").fetchone() != (value,)]
    return refused if read_only or mode == ("wal",) else [*refused, "journal_mode"]


def primary_code(error: Exception) -> int:
    """SQLite's error code without its details; that of a plain error where there is none."""
    extended: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return extended & 0xFF


def file_identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at this path, so that one that was put in its place is noticed; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
