"""What can still be believed of a broken ledger.

Spends are only ever raised by what is found here, never lowered, so a record is believed generously: an
entry whose hash still fits it and the entry before it counts, wherever in the chain it stands. The budget's
terms could be raised by a forger and therefore count only under the device's own signature.

What servers were shown goes on after the last number that each can have seen: of every entry that cannot be read any
more it is assumed that it was a release to that server.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature

from privacy.accounting.limits import Spend
from privacy.errors import LedgerTampered, ReceiptRefused
from privacy.keys import check_signature
from privacy.ledger.anchor import Anchor
from privacy.ledger.entries import (
    BEFORE_GENESIS,
    Entry,
    Head,
    Opened,
    QuotaSet,
    Released,
    Reserved,
    link,
)
from privacy.ledger.excerpts import Excerpts
from privacy.ledger.mark import BLANK, read_mark
from privacy.ledger.state import check_opening
from privacy.ledger.storage import surviving
from privacy.receipts import Countersignature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privacy.keys import LedgerKeys
    from privacy.ledger.files import LedgerFiles
    from privacy.ledger.mark import Reached


@dataclass
class Remains:
    """The most that the surviving records show."""

    device_key: bytes
    opened: Opened | None = None
    ledger: str = ""
    highest: int = 0
    at: int = 0
    spent: Spend = field(default_factory=Spend)
    by_server: dict[str, Spend] = field(default_factory=dict)
    quotas: dict[str, int] = field(default_factory=dict)
    excerpts: Excerpts = field(default_factory=Excerpts)
    shown: dict[int, str] = field(default_factory=dict)
    """By the number of a reservation, the key of the excerpt that its release goes into."""
    first: int = 0
    readable: int = 0
    """How many entries could be read."""

    @property
    def unread(self) -> int:
        """How many entries there were that cannot be read."""
        return max(0, self.highest + 1 - self.first - self.readable)

    def add_head(self, head: Head) -> bool:
        """Count a signed end of the chain, or what a server has seen of it; no other signature counts."""
        excerpt = self.excerpts.by_ledger.get(head.ledger)
        if excerpt is not None:
            if _is_signed(bytes.fromhex(excerpt.device_key), head.statement, head.signature):
                excerpt.before += max(0, head.sequence - excerpt.number)
            return False
        # The second where a server was shown the ledger itself.
        statements = (head.end_statement, head.statement)
        if not any(_is_signed(self.device_key, statement, head.signature) for statement in statements):
            # Perhaps of an excerpt of which nothing is left; believed, since it can only raise numbers.
            self.excerpts.lost = max(self.excerpts.lost, head.sequence if self.ledger != head.ledger else 0)
            return False
        self.ledger = self.ledger or head.ledger
        self.highest = max(self.highest, head.sequence)
        return True

    def add_mark(self, reached: Reached) -> None:
        """Count what the mark has seen; only the device's keys can have written it."""
        self.ledger = self.ledger or reached.ledger
        self.highest = max(self.highest, reached.sequence)
        self.spent = most(self.spent, reached.spent)

    def add_entry(self, entry: Entry) -> None:
        """Count an entry that still fits into the chain."""
        event = entry.event
        if isinstance(event, Opened):
            if not self._add_opening(event):
                return
            self.first = entry.sequence
        elif isinstance(event, Reserved):
            self.spent = most(self.spent, event.spent)
            self._raise_server(event.server, event.spent_by_server)
            self.shown[entry.sequence] = event.shown
        elif isinstance(event, QuotaSet):
            self.quotas[event.server] = event.share_ppm
        elif isinstance(event, Released):
            self.excerpts.release(entry.sequence, self.shown.get(event.reserve, ""), "", event.payload_hash)
        self.readable += 1
        self.highest, self.at = max(self.highest, entry.sequence), max(self.at, entry.at)

    def _add_opening(self, opened: Opened) -> bool:
        try:
            check_opening(opened)
        except LedgerTampered:
            return False
        if opened.device_key != self.device_key.hex():
            return False
        self.opened, self.ledger = opened, opened.ledger
        self.excerpts = Excerpts.of(opened)
        self.spent = most(self.spent, opened.carried)
        for server, spend in opened.carried_by_server:
            self._raise_server(server, spend)
        self.quotas = dict(opened.quotas) | self.quotas
        return True

    def _raise_server(self, server: str, spend: Spend) -> None:
        self.by_server[server] = most(self.by_server.get(server, Spend()), spend)


def salvage(files: LedgerFiles, keys: LedgerKeys) -> Remains:
    """Read everything that is left: entries, signed heads, the anchor, the mark, the countersignatures."""
    remains = Remains(keys.public_key)
    if files.database.exists():
        for entry in _entries(files):
            remains.add_entry(entry)
        for head in _heads(files, remains.ledger):
            remains.add_head(head)
    if files.anchor.exists():
        with closing(Anchor.open(files.anchor, read_only=True)) as anchor:
            for note in anchor.read():
                if note is not None and remains.add_head(note.head):
                    remains.spent = most(remains.spent, note.spent)
    reached = mark_left(files, keys)
    if reached is not BLANK:
        remains.add_mark(reached)
    return remains


def mark_left(files: LedgerFiles, keys: LedgerKeys) -> Reached | None:
    """What the mark says, if it is there and can be read."""
    try:
        return read_mark(files.mark, keys.marking) if files.mark.exists() else BLANK
    except LedgerTampered:
        return BLANK


def fingerprints(files: LedgerFiles) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of each file that is set aside."""
    prints = []
    for path in (files.anchor, files.database, files.log):
        if path.exists():
            with path.open("rb") as file:
                prints.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return tuple(prints)


def most(one: Spend, other: Spend) -> Spend:
    """The larger of two spends, share by share."""
    return Spend(
        max(one.pure_micro_epsilon, other.pure_micro_epsilon),
        max(one.mu_squared_nano, other.mu_squared_nano),
        max(one.renyi_nano, other.renyi_nano),
    )


def _is_signed(key: bytes, statement: bytes, signature: bytes) -> bool:
    try:
        check_signature(key, statement, signature)
    except InvalidSignature:
        return False
    return True


def _entries(files: LedgerFiles) -> Iterator[Entry]:
    rows = {
        sequence: (body, digest)
        for sequence, body, digest in surviving(
            files.database, "SELECT seq, body, hash FROM entry", files.timeout_seconds
        )
        if isinstance(sequence, int) and isinstance(body, bytes) and isinstance(digest, bytes)
    }
    for sequence in sorted(rows):
        body, digest = rows[sequence]
        previous = rows[sequence - 1][1] if sequence - 1 in rows else BEFORE_GENESIS
        if link(previous, body) != digest:
            continue
        try:
            entry = Entry.from_body(body)
        except (ValueError, TypeError):
            continue
        if entry.sequence == sequence:
            yield entry


def _heads(files: LedgerFiles, ledger: str) -> Iterator[Head]:
    for sequence, digest, signature in surviving(
        files.database, "SELECT seq, hash, signature FROM head", files.timeout_seconds
    ):
        if isinstance(sequence, int) and isinstance(digest, bytes) and isinstance(signature, bytes):
            yield Head(ledger, sequence, digest, signature)
    for (body,) in surviving(files.database, "SELECT body FROM countersignature", files.timeout_seconds):
        try:
            kept = Countersignature.from_json(body if isinstance(body, bytes) else b"")
        except ReceiptRefused:
            continue
        yield kept.entry
