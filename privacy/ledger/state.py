"""What the entries of a ledger add up to, believing none that does not follow from the ones before.

`follow` checks one stored entry after another: its hash, its spelling, its number, its time, its sums.
The result answers every question that a spend asks, so that a spend reads one row and not the whole
ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from cryptography.exceptions import InvalidSignature

from privacy.accounting.limits import Spend
from privacy.errors import LedgerTampered
from privacy.keys import check_signature
from privacy.ledger.entries import (
    BEFORE_GENESIS,
    FIRST_VERSION,
    Decided,
    Entry,
    Head,
    Opened,
    QuotaSet,
    Released,
    Reserved,
    link,
)
from privacy.ledger.excerpts import Excerpts
from privacy.ledger.storage import tampered

if TYPE_CHECKING:
    from privacy.ledger.storage import HeadRow, Row


@dataclass
class LedgerState:
    """The ledger up to its last believed entry; `first` is the number of its opening entry."""

    opened: Opened
    first: int
    at: int
    digests: list[bytes]
    totals: list[Spend]
    by_server: dict[str, Spend]
    quotas: dict[str, int]
    reserved: dict[int, Reserved] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    """By the reservation's number, the number of its release."""
    releases: dict[int, Released] = field(default_factory=dict)
    excerpts: Excerpts = field(default_factory=Excerpts)
    takes_old_ends: bool = False
    """Whether an end may be signed as receipts are: only in a ledger from before there was a mark."""

    @classmethod
    def begin(cls, row: Row, *, is_marked: bool = True) -> Self:
        """The state after an opening entry that its device signed."""
        entry = _believed(row, BEFORE_GENESIS)
        opened = entry.event
        if not isinstance(opened, Opened):
            raise tampered(f"its first entry ({row.sequence}) does not open it")
        check_opening(opened)
        return cls(
            opened=opened,
            first=row.sequence,
            at=entry.at,
            digests=[row.digest],
            totals=[opened.carried],
            by_server=dict(opened.carried_by_server),
            quotas=dict(opened.quotas),
            excerpts=Excerpts.of(opened),
            takes_old_ends=opened.version == FIRST_VERSION and not is_marked,
        )

    @property
    def sequence(self) -> int:
        """The number of the last entry."""
        return self.first + len(self.digests) - 1

    @property
    def digest(self) -> bytes:
        return self.digests[-1]

    @property
    def spent(self) -> Spend:
        return self.totals[-1]

    def spent_by(self, server: str) -> Spend:
        return self.by_server.get(server, Spend())

    def digest_at(self, sequence: int) -> bytes | None:
        """The hash of an entry; none for a number outside this chain."""
        inside = self.first <= sequence <= self.sequence
        return self.digests[sequence - self.first] if inside else None

    def total_at(self, sequence: int) -> Spend | None:
        """What had been spent by an entry; none for a number outside this chain."""
        inside = self.first <= sequence <= self.sequence
        return self.totals[sequence - self.first] if inside else None

    def follow(self, row: Row) -> None:
        """Take the next stored entry, or raise `LedgerTampered` and believe nothing more of this ledger."""
        if row.sequence != self.sequence + 1:
            raise tampered(f"entry {self.sequence + 1} is missing")
        entry = _believed(row, self.digest)
        if entry.at < self.at:
            raise tampered(f"entry {row.sequence} is dated before the one it follows")
        self.accept(entry, row.digest)

    def accept(self, entry: Entry, digest: bytes) -> None:
        """Take an entry whose hash is right; raise `LedgerTampered` if it contradicts the ones before."""
        match entry.event:
            case Opened():
                raise tampered(f"entry {entry.sequence} opens it a second time")
            case Reserved() as reserved:
                self._book(entry.sequence, reserved)
            case Released() as release:
                self._settle(entry.sequence, release)
            case QuotaSet(server, share_ppm):
                self.quotas[server] = share_ppm
            case Decided():
                pass
        self.at = entry.at
        self.digests.append(digest)
        if len(self.totals) < len(self.digests):
            self.totals.append(self.spent)

    def check_head(self, head: HeadRow | None) -> None:
        """Raise `LedgerTampered` unless the device signed exactly this end of the chain."""
        if head is None or head.sequence != self.sequence or head.digest != self.digest:
            raise tampered("its end is missing or does not fit its entries")
        end = Head(self.opened.ledger, head.sequence, head.digest, head.signature)
        check_end(self.opened.device_key, end, "its end", takes_old=self.takes_old_ends)

    def _book(self, sequence: int, reserved: Reserved) -> None:
        if reserved.request in self.requests:
            raise tampered(f"entry {sequence} books a request a second time")
        if reserved.cost.relation is not self.opened.budget.relation:
            raise tampered(f"entry {sequence} books under another neighbouring relation")
        spent, by_server = self.spent + reserved.spend, self.spent_by(reserved.server) + reserved.spend
        if (reserved.spent, reserved.spent_by_server) != (spent, by_server):
            raise tampered(f"the sums of entry {sequence} are wrong")
        if not spent.fits(self.opened.limits):
            raise tampered(f"entry {sequence} books more than the budget holds")
        self.totals.append(spent)
        self.by_server[reserved.server] = by_server
        self.reserved[sequence] = reserved
        self.requests[reserved.request] = sequence

    def _settle(self, sequence: int, release: Released) -> None:
        if release.reserve not in self.reserved or release.reserve in self.released:
            raise tampered(f"entry {sequence} answers nothing that was booked, or answers it twice")
        self.released[release.reserve] = sequence
        self.releases[sequence] = release
        reserved = self.reserved[release.reserve]
        self.excerpts.release(sequence, reserved.shown, reserved.request, release.payload_hash)


def check_opening(opened: Opened) -> None:
    """Raise `LedgerTampered` unless the terms are signed by the device they name."""
    check_signed(opened.device_key, opened.statement, opened.signature, "its budget")


def check_end(device_key: str, end: Head, what: str, *, takes_old: bool) -> None:
    """Raise `LedgerTampered` unless the device signed that this is, or was, the end."""
    try:
        check_signed(device_key, end.end_statement, end.signature, what)
    except LedgerTampered:
        if not takes_old:
            raise
        check_signed(device_key, end.statement, end.signature, what)


def check_signed(device_key: str, statement: bytes, signature: bytes | str, what: str) -> None:
    """Raise `LedgerTampered` unless the device signed `statement`."""
    try:
        raw = bytes.fromhex(signature) if isinstance(signature, str) else signature
        check_signature(bytes.fromhex(device_key), statement, raw)
    except (InvalidSignature, ValueError) as error:
        raise tampered(f"{what} is not signed by its device") from error


def _believed(row: Row, previous: bytes) -> Entry:
    """The entry in `row`, if it follows `previous` in the chain and spells what it should."""
    if link(previous, row.body) != row.digest:
        raise tampered(f"entry {row.sequence} was changed")
    try:
        entry = Entry.from_body(row.body)
    except (ValueError, TypeError) as error:
        raise tampered(f"entry {row.sequence} cannot be read") from error
    if entry.sequence != row.sequence:
        raise tampered(f"entry {row.sequence} stands in the place of another")
    return entry
