"""What the ledger's tests share: small ledgers, and ways to look at and to damage their files."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from privacy.accounting.limits import Spend
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyCost, PrivacyUnit
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger, Reservation
from privacy.ledger.anchor import Note
from privacy.ledger.entries import BEFORE_GENESIS, FIRST_VERSION, Entry, Head, Opened, Reserved, head_statement, link
from privacy.release import Answer, Release, Request

BUDGET = PrivacyBudget(epsilon=8, delta=1e-6)
MECHANISM = "label_histogram"
TERMS: dict[str, int | str] = {"num_labels": 10, "epsilon": "1/100"}


def pure(micro_epsilon: int = 1_000) -> PrivacyCost:
    return PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.REPLACE, pure_micro_epsilon=(micro_epsilon,))


def ask(subject: str, server: str = "hospital", purpose: str = "cohorts") -> Request:
    return Request(server, purpose, subject)


def reserve(ledger: Ledger, subject: str, micro_epsilon: int = 1_000, server: str = "hospital") -> Reservation:
    return ledger.reserve(MECHANISM, TERMS, pure(micro_epsilon), ask(subject, server))


def release(
    ledger: Ledger, subject: str, payload: bytes = b"noised", micro_epsilon: int = 1_000, server: str = "hospital"
) -> Release:
    return ledger.settle(reserve(ledger, subject, micro_epsilon, server), Answer(payload))


def filled(directory: Path, keys: LedgerKeys, num_entries: int) -> Path:
    """A closed ledger of about `num_entries` entries of every kind."""
    with Ledger.open(directory, keys, BUDGET) as ledger:
        ledger.set_quota("clinic", 900_000)
        ledger.record_decision("reviewed by the privacy officer")
        for number in range((num_entries - 3) // 2):
            release(ledger, f"epoch {number}", server=("hospital", "clinic")[number % 2])
    return directory


def as_before_marks(directory: Path, keys: LedgerKeys) -> None:
    """Make a closed ledger what the version before marks would have left: its opening, its end, its anchor, no mark."""
    entries = [Entry.from_body(body) for (body,) in rows(directory, "SELECT body FROM entry ORDER BY seq")]
    first = entries[0].event
    assert isinstance(first, Opened)
    opened = replace(first, version=FIRST_VERSION)
    signed = replace(opened, signature=keys.signing.sign(opened.statement).hex())
    previous, spent = BEFORE_GENESIS, Spend()
    for entry in [replace(entries[0], event=signed), *entries[1:]]:
        assert not (isinstance(entry.event, Reserved) and entry.event.shown)
        previous = link(previous, entry.body())
        spent = entry.event.spent if isinstance(entry.event, Reserved) else spent
        change(directory, "UPDATE entry SET body = ?, hash = ? WHERE seq = ?", (entry.body(), previous, entry.sequence))
    signature = keys.signing.sign(head_statement(signed.ledger, entry.sequence, previous))
    change(directory, "UPDATE head SET hash = ?, signature = ?", (previous, signature))
    note = Note(Head(signed.ledger, entry.sequence, previous, signature), spent)
    (directory / "ledger.anchor").write_bytes(note.page() * 2)
    (directory / "ledger.mark").unlink()


def copy_of(directory: Path, to: Path) -> Path:
    """A copy made while nobody has the ledger open."""
    return Path(shutil.copytree(directory, to))


def change(directory: Path, statement: str, parameters: tuple = ()) -> None:
    """Alter the database as whoever owns the disk could: with SQLite, past all our checks."""
    with closing(sqlite3.connect(directory / "ledger.db")) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, parameters)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def rows(directory: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(directory / "ledger.db")) as connection:
        return connection.execute(query).fetchall()


def dump(directory: Path) -> list[list[tuple]]:
    """Everything that the ledger says."""
    tables = ("entry", "head", "answer", "countersignature")
    return [rows(directory, f"SELECT * FROM {table} ORDER BY 1") for table in tables]


def flipped(content: bytes, offset: int, mask: int = 0x01) -> bytes:
    return content[:offset] + bytes([content[offset] ^ mask]) + content[offset + 1 :]
