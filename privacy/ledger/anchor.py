"""The anchor: a second, tiny record of how far the ledger has come, so that an old copy of it is noticed.

    ledger.anchor = page 0 ‖ page 1, each: {head, spent} as canonical JSON, its SHA-256, zeros up to 4 KiB

Each commit is noted afterwards, on the page that holds the older note, so a torn write leaves the other
page. The order makes the note trustworthy: it may lag behind the database (a crash in between), it is
never ahead of it. A note ahead of the database means that the database was rolled back.

A note is written, not synced: it then survives the death of the process, and after a power cut it lags,
which is allowed; a sync would double the price of every spend. Synced are its creation, the first note
of every opened ledger (or else a lost database would look like one that was never written) and the
last. The note repeats the signed head and the total spent, so that starting over after the loss of the
database does not start from nothing.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from privacy.accounting.limits import Spend
from privacy.canonical import canonical, parse, take_hex, take_text, take_whole, take_wholes
from privacy.durable import sync, write_durably
from privacy.ledger.entries import Head

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES = 4096
_PAGES = 2


@dataclass(frozen=True)
class Note:
    """How far the ledger has come and what it had spent by then."""

    head: Head
    spent: Spend

    def page(self) -> bytes:
        head, spent = self.head, self.spent
        body = canonical(
            {
                "ledger": head.ledger,
                "seq": head.sequence,
                "hash": head.digest.hex(),
                "signature": head.signature.hex(),
                "spent": [spent.pure_micro_epsilon, spent.mu_squared_nano, spent.renyi_nano],
            }
        )
        return (body + b"\n" + _checksum(body) + b"\n").ljust(PAGE_BYTES, b"\0")

    @classmethod
    def from_page(cls, page: bytes) -> Note:
        """The note that `page` holds; `ValueError` unless every byte is as `page()` writes it."""
        body = page.partition(b"\n")[0]
        fields = parse(body)
        head = Head(
            ledger=take_text(fields, "ledger"),
            sequence=take_whole(fields, "seq"),
            digest=take_hex(fields, "hash"),
            signature=take_hex(fields, "signature"),
        )
        note = cls(head, Spend(*take_wholes(fields, "spent", 3)))
        if note.page() != page:
            raise ValueError("not a whole note")
        return note


class Anchor:
    """The open anchor file. Whoever calls `advance` holds the ledger's lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._synced = False
        # How far the notes on the pages had come when this process last wrote one; none before that.
        self._numbers: list[int] | None = None

    @classmethod
    def create(cls, path: Path, note: Note) -> None:
        """Write a new anchor whole, in place of any old one, and durably."""
        write_durably(path, note.page() * _PAGES)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        return cls(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC))

    def read(self) -> list[Note | None]:
        """What each page holds; none for a page that was torn or altered."""
        return [_sound(page) for page in self._pages()]

    def advance(self, note: Note) -> None:
        """Note the newest commit, over the older of the two pages; the first time, durably.

        Where the note before this commit's is this process's own, nobody else has noted anything since, and the pages
        need not be read again.
        """
        numbers = self._numbers
        if numbers is None or max(numbers) != note.head.sequence - 1:
            numbers = [_number(page) for page in self._pages()]
        older = numbers.index(min(numbers))
        self._numbers = None  # until it is written: a write that failed may have torn the page
        _write_whole(self._descriptor, note.page(), older * PAGE_BYTES)
        self._numbers = [note.head.sequence if page == older else number for page, number in enumerate(numbers)]
        if not self._synced:
            self.sync()

    def sign_anew(self, note: Note) -> None:
        """Write `note` on both pages, durably."""
        for page in range(_PAGES):
            _write_whole(self._descriptor, note.page(), page * PAGE_BYTES)
        self._numbers = None
        self.sync()

    def sync(self) -> None:
        sync(self._descriptor)
        self._synced = True

    def close(self) -> None:
        os.close(self._descriptor)

    def _pages(self) -> list[bytes]:
        return [os.pread(self._descriptor, PAGE_BYTES, page * PAGE_BYTES) for page in range(_PAGES)]


def _number(page: bytes) -> int:
    note = _sound(page)
    return -1 if note is None else note.head.sequence


def _sound(page: bytes) -> Note | None:
    try:
        return Note.from_page(page)
    except ValueError:
        return None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")


def _write_whole(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
