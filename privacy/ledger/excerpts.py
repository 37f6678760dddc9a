"""What one server is shown of a ledger: its own releases, numbered 1, 2, 3 under a name and a key of its own.

    head of a release = SHA-256("covey-excerpt-v1" ‖ head of the release before ‖ [name, number, request, payload hash])

The device keeps one ledger, with one budget. Each server sees an excerpt of it that is a small ledger in itself: its
receipts follow each other, a fork or a replay shows, and a countersignature says how far it had come. Nothing in it
tells of other servers: not the key, not the name, not the numbers, not the hashes. Which excerpt a release goes into
stands in the ledger, with its reservation, for whoever may read that.

A server that enrolled before there were excerpts goes on seeing the ledger itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privacy.canonical import canonical
from privacy.keys import shown_name
from privacy.ledger.entries import BEFORE_GENESIS

if TYPE_CHECKING:
    from privacy.keys import SigningKey
    from privacy.ledger.entries import Opened

_TAG = b"covey-excerpt-v1"


@dataclass
class Excerpt:
    """The releases that stand in one server's receipts."""

    device_key: str
    before: int = 0
    """How many releases may have been shown before this ledger begins."""
    entries: list[int] = field(default_factory=list)
    """The numbers of these releases in the ledger itself."""
    heads: list[bytes] = field(default_factory=list)

    @property
    def ledger(self) -> str:
        """The name that the server knows the ledger by."""
        return shown_name(bytes.fromhex(self.device_key))

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
        return self.heads[number - self.before - 1] if self._is_inside(number) else None

    def entry_at(self, number: int) -> int | None:
        """Where a release stands in the ledger itself; none for a number outside it."""
        return self.entries[number - self.before - 1] if self._is_inside(number) else None

    def _is_inside(self, number: int) -> bool:
        return self.before < number <= self.number


@dataclass
class Excerpts:
    """Every server's excerpt of one ledger."""

    lost: int = 0
    """After how many releases an excerpt goes on that nobody knows of any more."""
    by_ledger: dict[str, Excerpt] = field(default_factory=dict)
    """By the name that the server knows the ledger by."""
    places: dict[int, tuple[Excerpt, int]] = field(default_factory=dict)
    """By the number of a release in the ledger: in which excerpt it stands, and its number there."""

    @classmethod
    def of(cls, opened: Opened) -> Excerpts:
        """Those that go on from before the ledger was opened."""
        known = [Excerpt(device_key, number) for device_key, number in opened.shown]
        return cls(opened.lost, {excerpt.ledger: excerpt for excerpt in known})

    def release(self, sequence: int, device_key: str, request: str, payload_hash: str) -> None:
        """Count a release into the excerpt of that key; without one its server sees the ledger itself."""
        if device_key:
            excerpt = self.under(device_key)
            excerpt.add(sequence, request, payload_hash)
            self.by_ledger[excerpt.ledger] = excerpt
            self.places[sequence] = excerpt, excerpt.number

    def under(self, device_key: str) -> Excerpt:
        """The excerpt of a key; an empty one if nothing is known of it."""
        name = shown_name(bytes.fromhex(device_key))
        return self.by_ledger.get(name) or Excerpt(device_key, self.lost)

    def going_on(self, unread: int) -> tuple[tuple[str, int], ...]:
        """What a ledger that continues this one takes over (`Opened.shown`), where `unread` entries are missing."""
        return tuple((excerpt.device_key, excerpt.number + unread) for _, excerpt in sorted(self.by_ledger.items()))


@dataclass(frozen=True)
class Face:
    """A release as its server is shown it, and the key that signs for it."""

    ledger: str
    sequence: int
    digest: bytes
    signing: SigningKey
