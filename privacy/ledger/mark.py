"""The mark: the furthest point that the ledger has come to, sealed, in one place that is overwritten.

    ledger.mark = length ‖ {ledger, opening, seq, hash, spent} sealed under a key of its own, in one sector

The database keeps remains of its past (its log, freed pages), the anchor its last two notes; what was signed as the
end yesterday can be found there and put back. Of the mark there is nothing to be found but its present self, and
without the device's keys nobody can make another. A ledger that is behind its mark, or another than its mark says, was
cut, set back or exchanged.

It is written after each commit and before anyone is told of it: it may lag behind the entries by what nobody was
told, and is never ahead of them. Before an answer may leave it is also synced, so not even a power cut leaves it behind
an answer that was sent. One sector, because a disk writes that whole or not at all.

`BLANK` stands for a ledger that is to be created. Whoever keeps the keys makes it with them, and from then
on a ledger without a mark is one that was taken away.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from privacy.accounting.limits import Spend
from privacy.canonical import canonical, parse, take_hex, take_text, take_whole, take_wholes
from privacy.durable import sync_content, write_durably
from privacy.errors import SealBroken
from privacy.ledger.storage import tampered
from privacy.sealing import open_sealed, place, seal

if TYPE_CHECKING:
    from pathlib import Path

    from privacy.ledger.state import LedgerState

_SECTOR_BYTES: Final = 512
_BODY_BYTES: Final = 448
"""All bodies are as long, so the length does not say how far the ledger has come."""
_LENGTH_BYTES: Final = 2


@dataclass(frozen=True)
class Reached:
    """How far a ledger has come, and which ledger that is."""

    ledger: str
    opening: str
    """The hash of the opening entry: budget, limits, device key, and what was carried over."""
    sequence: int
    digest: bytes
    spent: Spend

    @classmethod
    def of(cls, state: LedgerState) -> Reached:
        return cls(state.opened.ledger, state.digests[0].hex(), state.sequence, state.digest, state.spent)

    def to_body(self) -> bytes:
        return canonical(
            {
                "ledger": self.ledger,
                "opening": self.opening,
                "seq": self.sequence,
                "hash": self.digest.hex(),
                "spent": [self.spent.pure_micro_epsilon, self.spent.mu_squared_nano, self.spent.renyi_nano],
            }
        )

    @classmethod
    def from_body(cls, body: bytes) -> Reached:
        fields = parse(body)
        return cls(
            ledger=take_text(fields, "ledger"),
            opening=take_text(fields, "opening"),
            sequence=take_whole(fields, "seq"),
            digest=take_hex(fields, "hash"),
            spent=Spend(*take_wholes(fields, "spent", 3)),
        )


BLANK: Final = None
"""In place of a `Reached`: there is no ledger yet."""


class Mark:
    """The open mark of one ledger. Whoever writes it holds the ledger's lock."""

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor, self._key = descriptor, key

    @classmethod
    def create(cls, path: Path, key: bytes, reached: Reached | None = BLANK) -> None:
        """Write a mark whole, in place of any old one, and durably."""
        write_durably(path, _sector(key, reached))

    @classmethod
    def open(cls, path: Path, key: bytes) -> Self:
        return cls(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), key)

    def read(self) -> Reached | None:
        """What the mark says; `LedgerTampered` if these keys did not write it."""
        return _read(self._key, os.pread(self._descriptor, _SECTOR_BYTES + 1, 0))

    def write(self, reached: Reached, *, durably: bool) -> None:
        """Note how far the ledger has come, over what was noted before."""
        sector = _sector(self._key, reached)
        if os.pwrite(self._descriptor, sector, 0) != len(sector):
            raise OSError(0, "the mark was not written whole")
        if durably:
            self.sync()

    def sync(self) -> None:
        sync_content(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_mark(path: Path, key: bytes) -> Reached | None:
    """What the mark in a file says; `LedgerTampered` if these keys did not write it."""
    return _read(key, path.read_bytes())


def _sector(key: bytes, reached: Reached | None) -> bytes:
    body = (b"{}" if reached is BLANK else reached.to_body()).ljust(_BODY_BYTES)
    sealed = seal(key, body, place("ledger mark"))
    sector = len(sealed).to_bytes(_LENGTH_BYTES) + sealed
    if len(body) != _BODY_BYTES or len(sector) > _SECTOR_BYTES:
        raise OverflowError("the mark of a ledger does not fit into one sector")
    return sector.ljust(_SECTOR_BYTES, b"\0")


def _read(key: bytes, sector: bytes) -> Reached | None:
    end = _LENGTH_BYTES + int.from_bytes(sector[:_LENGTH_BYTES])
    with suppress(SealBroken, ValueError):
        body = open_sealed(key, sector[_LENGTH_BYTES:end], place("ledger mark")).rstrip()
        if sector[end:] == bytes(_SECTOR_BYTES - end):
            return BLANK if body == b"{}" else Reached.from_body(body)
    # Outside the handler: nobody learns which check failed.
    raise tampered("its mark was changed, or belongs to other keys")
