"""A database as the store uses it: a connection for each thread at work, one writer at a time, nothing half done.

Statements are SQLAlchemy's, compiled once for the database at hand and run on the driver's own connection: a look-up
takes microseconds, and the gateway makes one on every call. After any failure its connection is given up and the next
call opens another, because after a failed sync the system may report the next one as done.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import bindparam, delete, insert, select, update

from server_kit.errors import StoreError, StoreUnavailable
from server_kit.store import schema

if TYPE_CHECKING:
    from sqlalchemy import BindParameter, Column, Engine, Table
    from sqlalchemy.engine import Dialect
    from sqlalchemy.sql import ClauseElement

LOCK_TIMEOUT_SECONDS = 10.0
Row = tuple[Any, ...]
_COUNTER = select(schema.counters.c.value).where(schema.counters.c.name == bindparam("of_name"))
_COUNT = (
    update(schema.counters)
    .where(schema.counters.c.name == bindparam("of_name"))
    .values(value=schema.counters.c.value + bindparam("by"))
)
_BEGIN_COUNTING = insert(schema.counters)
_CHUNK = 100


class Backend(Protocol):
    """What differs between one database and another."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    def connect(self) -> Any:
        """A connection of the driver that begins nothing by itself."""

    def begin_reading(self, connection: Any) -> None:
        """Begin a transaction that sees one state of the database."""

    def begin_writing(self, connection: Any) -> None:
        """Begin a transaction, once nobody else writes; an error after `LOCK_TIMEOUT_SECONDS`."""

    def engine(self) -> Engine:
        """The same for SQLAlchemy, to migrate."""

    def damage(self, connection: Any) -> list[str]:
        """What is wrong with the database's own files, after reading all of them; empty if nothing is."""

    def meaning(self, error: Exception) -> StoreError:
        """The driver's error as one of ours."""


class Session:
    """A connection, for one thread at a time."""

    def __init__(self, backend: Backend, compiled: dict[ClauseElement, tuple[str, dict[str, Any]]]) -> None:
        self._backend, self._compiled = backend, compiled
        self.connection = backend.connect()

    def run(self, statement: ClauseElement, **values: Any) -> int:
        """How many rows it changed."""
        sql, defaults = self._sql(statement)
        changed: int = self.connection.execute(sql, defaults | values).rowcount
        return changed

    def many(self, statement: ClauseElement, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            sql, defaults = self._sql(statement)
            with self._cursor() as cursor:
                cursor.executemany(sql, [{**defaults, **row} for row in rows] if defaults else rows)

    def one(self, statement: ClauseElement, **values: Any) -> Row | None:
        sql, defaults = self._sql(statement)
        row: Row | None = self.connection.execute(sql, defaults | values).fetchone()
        return row

    def all(self, statement: ClauseElement, **values: Any) -> list[Row]:
        sql, defaults = self._sql(statement)
        rows: list[Row] = self.connection.execute(sql, defaults | values).fetchall()
        return rows

    def replace(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put these rows in the place of those with the same primary key."""
        names = [column.name for column in table.primary_key.columns]
        self.many(_deleting(table), [{f"of_{name}": row[name] for name in names} for row in rows])
        self.many(_inserting(table), rows)

    def where_in(self, column: Column[Any], keys: Iterable[Any], *wanted: Column[Any]) -> list[Row]:
        """The `wanted` columns of all rows whose `column` is one of `keys`."""
        found: list[Row] = []
        distinct = list(dict.fromkeys(keys))
        for start in range(0, len(distinct), _CHUNK):
            chunk = distinct[start : start + _CHUNK]
            # Filled up to one of a few lengths, so that few statements are ever compiled.
            length = next(size for size in (1, 10, _CHUNK) if size >= len(chunk))
            chunk += [chunk[-1]] * (length - len(chunk))
            values = {f"key_{place}": key for place, key in enumerate(chunk)}
            found += self.all(_selecting(column, wanted, length), **values)
        return found

    def numbers(self, name: str, count: int) -> range:
        """So many numbers of this name that were never given before."""
        if count == 0:
            return range(0)
        if not self.run(_COUNT, of_name=name, by=count):
            self.run(_BEGIN_COUNTING, name=name, value=count)
        (last,) = self.one(_COUNTER, of_name=name) or (0,)
        return range(last - count + 1, last + 1)

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def close(self) -> None:
        with suppress(*self._backend.errors):
            self.connection.close()

    def _sql(self, statement: ClauseElement) -> tuple[str, dict[str, Any]]:
        try:
            return self._compiled[statement]
        except KeyError:
            compiled = statement.compile(dialect=self._backend.dialect)
            given = {name: value for name, value in (compiled.params or {}).items() if value is not None}
            self._compiled[statement] = str(compiled), given
            return self._compiled[statement]

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        cursor = self.connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()


class Database:
    """Sessions for all threads of this process."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._compiled: dict[ClauseElement, tuple[str, dict[str, Any]]] = {}
        self._idle: deque[Session] = deque()
        self._process = os.getpid()
        self._writer = threading.Lock()
        self._closed = False

    @contextmanager
    def looking(self) -> Iterator[Session]:
        """For one statement that only reads."""
        session = self._take()
        try:
            yield session
        except self.backend.errors as error:
            session.close()
            raise self.backend.meaning(error) from error
        except Exception:
            self._give_back(session)
            raise
        except BaseException:
            # Interrupted anywhere, perhaps in the middle of a commit.
            session.close()
            raise
        self._give_back(session)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """For several statements that read one state of the database."""
        with self._transaction(self.backend.begin_reading) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction, durable when this ends, with nobody else writing meanwhile."""
        # Threads of one process queue here; a database would let them poll.
        if not self._writer.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            raise StoreUnavailable(
                f"another thread has been writing to the store for {LOCK_TIMEOUT_SECONDS:g} s; try again later; "
                "nothing was changed"
            )
        try:
            with self._transaction(self.backend.begin_writing) as session:
                yield session
        finally:
            self._writer.release()

    def close(self) -> None:
        """Close what is idle now; what is at work is closed when it is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _transaction(self, begin: Callable[[Any], None]) -> Iterator[Session]:
        with self.looking() as session:
            begin(session.connection)
            try:
                yield session
            except self.backend.errors:
                raise
            except BaseException:
                session.execute("ROLLBACK")
                raise
            session.execute("COMMIT")

    def _take(self) -> Session:
        if self._closed or self._process != os.getpid():
            raise StoreUnavailable(
                "this store was closed, or opened by the process that this one was forked from; open it again; "
                "nothing was changed"
            )
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return Session(self.backend, self._compiled)
        except self.backend.errors as error:
            raise self.backend.meaning(error) from error

    def _give_back(self, session: Session) -> None:
        if self._closed:
            session.close()
        else:
            self._idle.append(session)


@cache
def _deleting(table: Table) -> ClauseElement:
    return delete(table).where(*(column == bindparam(f"of_{column.name}") for column in table.primary_key.columns))


@cache
def _inserting(table: Table) -> ClauseElement:
    return insert(table)


@cache
def _selecting(column: Column[Any], wanted: tuple[Column[Any], ...], length: int) -> ClauseElement:
    keys: list[BindParameter[Any]] = [bindparam(f"key_{place}") for place in range(length)]
    return select(*wanted).where(column.in_(keys))
