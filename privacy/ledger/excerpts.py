"""What one server is shown of a ledger: its own releases, numbered 1, 2, 3 under a name and a key of its own.

    head of a release = SHA-256("covey-excerpt-v1" ‖ head of the release before ‖ [ledger, number, request, payload])

The device keeps one ledger, with one budget. Each server sees an excerpt of it that is a small ledger in itself: its
receipts follow each other, a fork or a replay shows, and a countersignature says how far it had come. Nothing
in it tells of other servers: not the key, not the name, not the numbers, not the hashes. Which entries an excerpt is made of
stands in the ledger (`Shown`), for whoever may read that.

A server for which the ledger holds no `Shown` is shown the ledger itself, as all were before there were excerpts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privacy.canonical import canonical
from privacy.ledger.entries import BEFORE_GENESIS

if TYPE_CHECKING:
    from privacy.keys import SigningKey
    from privacy.ledger.entries import Opened, Shown

_TAG = b"covey-excerpt-v1"
NOBODY = ""
"""In place of a server's name, where nothing more goes into an excerpt."""


@dataclass
class Excerpt:
    """The releases that stand in one server's receipts."""

    ledger: str
    device_key: str
    before: int = 0
    """How many releases may have been shown before this ledger begins."""
    entries: list[int] = field(default_factory=list)
    """The numbers of these releases in the ledger itself."""
    heads: list[bytes] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The number of the last release."""
        return self.before + len(self.heads)

    def add(self, sequence: int, request: str, payload_hash: str) -> None:
        """Take the release in entry `sequence` as the next."""
        previous = self.heads[-1] if self.heads else BEFORE_GENESIS
        body = canonical([self.ledger, self.number + 1, request, payload_hash])
        self.entries.append(sequence)
        self.heads.append(hashlib.sha256(_TAG + previous + body).digest())

    def head_at(self, number: int) -> bytes | None:
        """The head of a release; none for a number outside this ledger."""
        inside = self.before < number <= self.number
        return self.heads[number - self.before - 1] if inside else None

    def entry_at(self, number: int) -> int | None:
        """Where a release stands in the ledger itself; none for a number outside it."""
        inside = self.before < number <= self.number
        return self.entries[number - self.before - 1] if inside else None


@dataclass
class Excerpts:
    """Every server's excerpt of one ledger."""

    lost: int = 0
    by_ledger: dict[str, Excerpt] = field(default_factory=dict)
    """By the name that the server knows the ledger by."""
    shown_to: dict[str, str] = field(default_factory=dict)
    """By the server's own name, which excerpt the next release to it goes into."""
    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By the number of a release in the ledger: in which excerpt it stands, and its number there."""

    @classmethod
    def of(cls, opened: Opened) -> Excerpts:
        """Those that go on from before the ledger was opened."""
        excerpts = cls(opened.lost)
        for server, ledger, device_key, number in opened.shown:
            excerpts.by_ledger[ledger] = Excerpt(ledger, device_key, number)
            if server != NOBODY:
                excerpts.shown_to[server] = ledger
        return excerpts

    def show(self, shown: Shown) -> None:
        """From here on, releases to this server go into this excerpt."""
        # One that nobody knows of any more goes on after as many releases as may have been lost.
        self.by_ledger.setdefault(shown.ledger, Excerpt(shown.ledger, shown.device_key, self.lost))
        self.shown_to[shown.server] = shown.ledger

    def release(self, sequence: int, server: str, request: str, payload_hash: str) -> None:
        """Count a release to `server`, if that one is shown an excerpt."""
        ledger = self.shown_to.get(server)
        if ledger is not None:
            excerpt = self.by_ledger[ledger]
            excerpt.add(sequence, request, payload_hash)
            self.places[sequence] = ledger, excerpt.number

    def is_shown(self, server: str, ledger: str) -> bool:
        return self.shown_to.get(server) == ledger

    def going_on(self, unread: int) -> tuple[tuple[str, str, str, int], ...]:
        """What a ledger that continues this one takes over (`Opened.shown`), where `unread` entries are missing."""
        servers: dict[str, str] = {ledger: server for server, ledger in self.shown_to.items()}
        return tuple(
            (servers.get(ledger, NOBODY), ledger, excerpt.device_key, excerpt.number + unread)
            for ledger, excerpt in sorted(self.by_ledger.items())
        )


@dataclass(frozen=True)
class Face:
    """A release as its server is shown it, and the key that signs for it."""

    ledger: str
    sequence: int
    digest: bytes
    signing: SigningKey
