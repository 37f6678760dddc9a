"""What can still be believed of a broken ledger.

Spends are only ever raised by what is found here, never lowered, so a record is believed generously: an
entry whose hash still fits it and the entry before it counts, wherever in the chain it stands. The budget's
terms could be raised by a forger and therefore count only under the device's own signature.
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
from privacy.ledger.entries import BEFORE_GENESIS, Entry, Head, Opened, QuotaSet, Reserved, link
from privacy.ledger.state import check_opening
from privacy.ledger.storage import surviving
from privacy.receipts import Countersignature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privacy.ledger.files import LedgerFiles


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

    def add_head(self, head: Head) -> bool:
        """Count a signed end of the chain; a signature that does not hold counts for nothing."""
        try:
            check_signature(self.device_key, head.statement, head.signature)
        except InvalidSignature:
            return False
        self.ledger = self.ledger or head.ledger
        self.highest = max(self.highest, head.sequence)
        return True

    def add_entry(self, entry: Entry) -> None:
        """Count an entry that still fits into the chain."""
        event = entry.event
        if isinstance(event, Opened):
            if not self._add_opening(event):
                return
        elif isinstance(event, Reserved):
            self.spent = most(self.spent, event.spent)
            self._raise_server(event.server, event.spent_by_server)
        elif isinstance(event, QuotaSet):
            self.quotas[event.server] = event.share_ppm
        self.highest, self.at = max(self.highest, entry.sequence), max(self.at, entry.at)

    def _add_opening(self, opened: Opened) -> bool:
        try:
            check_opening(opened)
        except LedgerTampered:
            return False
        if opened.device_key != self.device_key.hex():
            return False
        self.opened, self.ledger = opened, opened.ledger
        self.spent = most(self.spent, opened.carried)
        for server, spend in opened.carried_by_server:
            self._raise_server(server, spend)
        self.quotas = dict(opened.quotas) | self.quotas
        return True

    def _raise_server(self, server: str, spend: Spend) -> None:
        self.by_server[server] = most(self.by_server.get(server, Spend()), spend)


def salvage(files: LedgerFiles, device_key: bytes) -> Remains:
    """Read everything that is left: entries, signed heads, the anchor, the countersignatures."""
    remains = Remains(device_key)
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
    return remains


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
