"""A vault's files as someone sees them who can write to the disk, and what such a person may do to them."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path


def sealed_records(directory: Path) -> dict[int, bytes]:
    with closing(sqlite3.connect(directory / "vault.db")) as connection:
        return dict(connection.execute("SELECT number, sealed FROM record"))


def overwrite_record(directory: Path, number: int, sealed: bytes) -> None:
    _run(directory, "UPDATE record SET sealed = ? WHERE number = ?", (sealed, number))


def remove_record(directory: Path, number: int) -> None:
    _run(directory, "DELETE FROM record WHERE number = ?", (number,))


def part(directory: Path, name: str) -> bytes:
    with closing(sqlite3.connect(directory / "vault.db")) as connection:
        return connection.execute("SELECT body FROM part WHERE name = ?", (name,)).fetchone()[0]


def overwrite_part(directory: Path, name: str, body: bytes) -> None:
    _run(directory, "UPDATE part SET body = ? WHERE name = ?", (body, name))


def copy_database(directory: Path, to: Path) -> None:
    """A copy of a closed vault's database, without its mark."""
    to.mkdir(exist_ok=True)
    shutil.copy(directory / "vault.db", to / "vault.db")


def put_back_database(copy: Path, directory: Path) -> None:
    for leftover in directory.glob("vault.db*"):
        leftover.unlink()
    shutil.copy(copy / "vault.db", directory / "vault.db")


def everything_on_disk(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def _run(directory: Path, statement: str, values: tuple[object, ...]) -> None:
    with closing(sqlite3.connect(directory / "vault.db")) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1
