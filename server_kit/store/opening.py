"""Open a store: find the database, bring its tables up to date, open its keys, sweep what a killed process left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from server_kit.errors import InvalidSetting
from server_kit.steady_clock import steady_seconds
from server_kit.store.blobs import open_blobs
from server_kit.store.database import Database
from server_kit.store.key_ring import KeyRing
from server_kit.store.migrating import migrate
from server_kit.store.parts import Ground
from server_kit.store.postgres import Postgres
from server_kit.store.protocol import Quota
from server_kit.store.sql_store import SqlStore
from server_kit.store.sqlite import Sqlite

if TYPE_CHECKING:
    from collections.abc import Callable

    from server_kit.store.blobs import Blobs
    from server_kit.store.database import Backend
    from server_kit.store.keys import StoreKeys


def open_store(
    url: str,
    keys: StoreKeys,
    blobs: Blobs | str | Path,
    clock: Callable[[], float] = steady_seconds,
    quota: Quota | None = None,
) -> SqlStore:
    """The store at `sqlite:///PATH` or `postgresql+psycopg://...`, made if it is not there.

    `blobs` holds large updates: a directory, or a URL that fsspec knows.
    """
    backend = backend_of(url)
    try:
        migrate(backend)
    except SQLAlchemyError as error:
        # SQLAlchemy wraps the driver's error, and quotes the statement in its own.
        cause = error.__cause__
        raise backend.meaning(cause if isinstance(cause, Exception) else error) from None
    except backend.errors as error:
        raise backend.meaning(error) from error
    database = Database(backend)
    ring = KeyRing(database, keys)
    ring.prepare()
    opened = open_blobs(blobs) if isinstance(blobs, str | Path) else blobs
    store = SqlStore(Ground(database, ring, opened, quota or Quota()), clock)
    store.sweep()
    return store


def backend_of(url: str) -> Backend:
    """The database behind a URL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidSetting("the store's URL cannot be read; write sqlite:///PATH; nothing was opened") from None
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return Sqlite(Path(str(parsed.database)).absolute())
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return Postgres(parsed)
    raise InvalidSetting(
        f"a store cannot be kept at a URL of the kind {parsed.drivername}; write sqlite:///PATH or "
        "postgresql+psycopg://USER@HOST/DATABASE; nothing was opened"
    )
