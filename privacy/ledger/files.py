"""The files of a ledger, the lock around them, and how they come into being.

    STATE/ledger.db        the entries (SQLite; beside it -wal and -shm)
    STATE/ledger.anchor    how far they have come, a second time
    STATE/ledger.mark      how far they have come, sealed, so that no older word for it can be put in its place
    STATE/ledger.restart   only while a person is starting over
    STATE/ledger.broken-N  what was set aside when the ledger was started over at entry N

The mark is created first, blank, then the anchor, then the database, and then the mark is filled in. A crash in
between leaves an anchor at entry 0 and no entries, or entry 0 and a blank mark, which the next opening completes; a
database that is gone while the anchor or the mark has come further is a loss.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from privacy.accounting.limits import BudgetLimits, Spend
from privacy.durable import sync_directory
from privacy.errors import LedgerUnavailable
from privacy.ledger.anchor import Anchor, Note
from privacy.ledger.entries import BEFORE_GENESIS, Entry, Head, Opened, end_statement, link
from privacy.ledger.mark import Mark, Reached
from privacy.ledger.storage import LedgerStorage, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from privacy.budget import PrivacyBudget
    from privacy.keys import LedgerKeys

MARK_FILE = "ledger.mark"
LEDGER_FILES = ("ledger.anchor", "ledger.db", "ledger.db-wal", "ledger.restart")
"""Any of these says that there is a ledger, or was."""
LOCK_TIMEOUT_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 0.01


class LedgerFiles:
    """The directory of one ledger, and the lock that one writer at a time holds."""

    def __init__(self, directory: Path, timeout_seconds: float) -> None:
        self.directory = directory
        self.database = directory / "ledger.db"
        self.log = directory / "ledger.db-wal"
        self.anchor = directory / "ledger.anchor"
        self.mark = directory / MARK_FILE
        self.restart = directory / "ledger.restart"
        self.timeout_seconds = timeout_seconds
        with unavailable("opened"):
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out. SQLite would do for entries; the anchor must move in step with them."""
        self._wait_for_lock()
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def all(self) -> tuple[Path, ...]:
        """Every file that a ledger consists of. The mark is not among them: it says which ledger there should be."""
        return self.anchor, self.database, self.log, self.directory / "ledger.db-shm"

    def storage(self, *, read_only: bool = False) -> LedgerStorage:
        return LedgerStorage(self.database, timeout_seconds=self.timeout_seconds, read_only=read_only)

    def close(self) -> None:
        os.close(self._descriptor)

    def _wait_for_lock(self) -> None:
        # Not a blocking call: a stopped process that holds the lock would stop this one for good.
        deadline = time.monotonic() + self.timeout_seconds
        pause_seconds = 0.0002
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise LedgerUnavailable(
                        f"another process has held the ledger for {self.timeout_seconds:g} s; "
                        "let it finish or stop it; nothing was booked or released"
                    ) from error
            except OSError as error:
                raise LedgerUnavailable(
                    f"this file system does not lock ({error.strerror}); keep the ledger on a local disk; "
                    "nothing was booked or released"
                ) from error
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def signed_opening(opened: Opened, keys: LedgerKeys) -> Opened:
    """`opened` under the device's own key."""
    named = replace(opened, device_key=keys.public_key.hex())
    return replace(named, signature=keys.signing.sign(named.statement).hex())


def first_opening(budget: PrivacyBudget, keys: LedgerKeys) -> Opened:
    """The terms of a device's first ledger."""
    terms = Opened(
        ledger=secrets.token_hex(16), device_key="", budget=budget, limits=BudgetLimits.of(budget), carried=Spend()
    )
    return signed_opening(terms, keys)


def create(files: LedgerFiles, keys: LedgerKeys, entries: Sequence[Entry]) -> None:
    """Write a new ledger that begins with `entries`: its anchor, then all entries at once, durably; then its mark."""
    opened = entries[0].event
    if not isinstance(opened, Opened):
        raise TypeError("a ledger begins with its opening entry")
    rows, heads, previous = [], [], BEFORE_GENESIS
    for entry in entries:
        body = entry.body()
        previous = link(previous, body)
        rows.append(Row(entry.sequence, body, previous))
        heads.append(signed_end(keys, opened.ledger, entry.sequence, previous))
    with unavailable("created"):
        if not files.mark.exists():
            Mark.create(files.mark, keys.marking)
        Anchor.create(files.anchor, Note(heads[0], opened.carried))
        os.close(os.open(files.database, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        storage = files.storage()
        try:
            with storage.writing():
                storage.create_tables()
                for row, head in zip(rows, heads, strict=True):
                    storage.append(row, head.signature)
            sync_directory(files.directory)
        finally:
            storage.close()
        end = Reached(opened.ledger, rows[0].digest.hex(), rows[-1].sequence, rows[-1].digest, opened.carried)
        Mark.create(files.mark, keys.marking, end)


def signed_end(keys: LedgerKeys, ledger: str, sequence: int, digest: bytes) -> Head:
    """The end of the chain under the device's signature, which stays on the device."""
    return Head(ledger, sequence, digest, keys.signing.sign(end_statement(ledger, sequence, digest)))


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closing_on_failure(thing: _Closable) -> Iterator[None]:
    """Let go of `thing` if what follows fails, and only then."""
    try:
        yield
    except BaseException:
        thing.close()
        raise


@contextmanager
def unavailable(deed: str) -> Iterator[None]:
    """Turn what the operating system refuses into `LedgerUnavailable`."""
    try:
        yield
    except OSError as error:
        raise LedgerUnavailable(
            f"the ledger could not be {deed} ({error.strerror}); make room or grant access and try again; "
            "nothing was released"
        ) from error
