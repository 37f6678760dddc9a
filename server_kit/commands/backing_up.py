"""`covey server backup`: a copy of the federation at one moment, while it runs; itself a federation that can run.

The database is held still for the moment in which blobs are linked, so that the copy names no blob that it lacks.
Blobs never change, so a link is as good as a copy, and takes no time and no room; to another disk they are copied.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from privacy.durable import make_directory, sync, sync_directory, write_durably
from server_kit.config.server_config import FILE_NAME
from server_kit.daemon.federation_home import Home
from server_kit.errors import HomeError

if TYPE_CHECKING:
    from server_kit.daemon.secret_files import SecretFiles

_SQLITE = "sqlite:///"
_LOCK_SECONDS = 60.0
_LOCAL = "file://"


@dataclass(frozen=True)
class BackedUp:
    """What a backup holds."""

    blobs: int
    """How many files; none if they lie elsewhere, where they have to be backed up themselves."""
    secrets: bool


def back_up(home: Home, target: Path, *, with_secrets: bool = True) -> BackedUp:
    """Copy a federation to `target`, which must not exist; whole or not at all."""
    database = _database_file(home)
    target = target.absolute()
    if target.exists():
        raise HomeError(f"{target.name} exists; name another place; nothing was copied")
    make_directory(target.parent)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        make_directory(draft)
        with closing(sqlite3.connect(database, isolation_level=None)) as source:
            with _held_still(database):
                blobs = _link_blobs(home, draft)
                _look(source)
            # Others write again; the copy is of the moment at which we looked.
            _copy_database(source, draft / "covey.db")
        for name in (FILE_NAME, "authority.pem"):
            write_durably(draft / name, (home.directory / name).read_bytes())
        if with_secrets:
            _copy_secrets(home.secrets, draft)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_directory(target.parent)
    return BackedUp(blobs, with_secrets)


def _database_file(home: Home) -> Path:
    if not home.store_url.startswith(_SQLITE):
        raise HomeError(
            "the database is not a file here; back it up with its own tools (pg_dump), and secrets/, server.toml and "
            "blobs beside it; nothing was copied"
        )
    return Path(home.store_url.removeprefix(_SQLITE))


@contextmanager
def _held_still(database: Path) -> Iterator[None]:
    """Nobody writes meanwhile: whoever wants to waits."""
    with closing(sqlite3.connect(database, timeout=_LOCK_SECONDS, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise HomeError(
                f"the database could not be held still for {_LOCK_SECONDS:.0f} s; try again; nothing was copied"
            ) from error
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def _look(source: sqlite3.Connection) -> None:
    """From here on the connection sees the database as it is now."""
    source.execute("BEGIN")
    source.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _copy_database(source: sqlite3.Connection, copy: Path) -> None:
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with closing(sqlite3.connect(copy)) as sink:
        source.backup(sink)
    sync(descriptor)
    os.close(descriptor)


def _link_blobs(home: Home, draft: Path) -> int:
    url = home.blobs_url.removeprefix(_LOCAL)
    if "://" in url:
        return 0
    count = 0
    for path in sorted(Path(url).rglob("*")):
        # A name that begins with a dot is a blob that somebody is writing.
        if path.is_file() and not path.name.startswith("."):
            count += _link(path, draft / "blobs" / path.relative_to(url))
    return count


def _link(path: Path, to: Path) -> bool:
    """False if it has gone meanwhile: nothing names it."""
    make_directory(to.parent)
    try:
        os.link(path, to)
    except FileNotFoundError:
        return False
    except OSError:
        # Another disk, or one that knows no links.
        shutil.copy2(path, to)
        with to.open("rb") as file:
            sync(file.fileno())
    return True


def _copy_secrets(kept: SecretFiles, draft: Path) -> None:
    make_directory(draft / "secrets")
    for path in sorted(kept.directory.iterdir()):
        if (content := kept.read_file(path.name)) is not None:
            write_durably(draft / "secrets" / path.name, content)
