"""PostgreSQL: for servers of several machines. One writer at a time, as with SQLite, by a lock of the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import NullPool, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from privacy.errors import MissingExtra
from server_kit.errors import StoreConflict, StoreError, StoreUnavailable
from server_kit.store import schema
from server_kit.store.database import LOCK_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.engine import Dialect

# "covey" in ASCII: a number that no other application is likely to lock.
_LOCK = 0x636F766579
# A writer whose machine died must not keep the others out for good.
_SETTINGS = (
    f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS:g}s'",
    "SET idle_in_transaction_session_timeout = '60s'",
    "SET synchronous_commit = 'on'",
)
_CONNECTING = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Postgres:
    """A database by URL (`postgresql+psycopg://user@host/name`); it must exist, its tables are made."""

    def __init__(self, url: URL) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtra(
                "a store in PostgreSQL needs psycopg; pip install 'covey[postgres]'; nothing was opened"
            ) from error
        self._psycopg = psycopg
        self._url = url
        self.errors = (psycopg.Error,)
        self.dialect: Dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]

    def connect(self) -> Any:
        connection = self._psycopg.connect(**self.connect_arguments(), autocommit=True)
        try:
            for setting in _SETTINGS:
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect_arguments(self) -> dict[str, Any]:
        """The URL in the driver's words."""
        given: dict[str, Any] = self._url.translate_connect_args(username="user", database="dbname")
        return {**_CONNECTING, **given, **self._url.query}

    def begin_reading(self, connection: Any) -> None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def begin_writing(self, connection: Any) -> None:
        connection.execute("BEGIN")
        # Only then: what a statement sees is decided when it begins, so the next one sees what the last writer left.
        connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")

    def engine(self) -> Engine:
        return create_engine("postgresql+psycopg://", creator=self.connect, poolclass=NullPool)

    def damage(self, connection: Any) -> list[str]:
        """Every row is read where it lies. With checksums (initdb's --data-checksums) a damaged page is an error."""
        found = []
        for table in schema.metadata.sorted_tables:
            try:
                connection.execute(f'SELECT sum(length(CAST(kept AS text))) FROM "{table.name}" AS kept')  # noqa: S608
            except self._psycopg.Error as error:
                found.append(f"table {table.name}: {type(error).__name__}")
        return found

    def meaning(self, error: Exception) -> StoreError:
        if isinstance(error, self._psycopg.IntegrityError):
            # Its text quotes the row.
            return StoreConflict("the store holds something else already; nothing was changed")
        return StoreUnavailable(
            f"the database could not be used ({type(error).__name__}); look at its log and at the network, and try "
            "again; nothing was changed"
        )
