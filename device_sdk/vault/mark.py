"""The mark: a second, tiny note of how far the vault has come, so that an old copy of its database is noticed.

    vault.mark = slot 0 ‖ slot 1, each: "device generation sha256" in a block of its own

It is written after each commit, over the older slot, and so may lag behind the database but is never ahead of it. It is
not sealed: whoever can write files can put back an old mark with the old database, sealed or not, which only a
server that has seen more can notice. Synced when it is made and when the vault is closed, as the ledger's anchor is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from privacy.durable import sync, write_durably

if TYPE_CHECKING:
    from pathlib import Path

_SLOT_BYTES = 4096
_SLOTS = 2


@dataclass(frozen=True)
class Note:
    """Whose vault, and how many times it has been written."""

    device: str
    generation: int

    def slot(self) -> bytes:
        body = f"{self.device} {self.generation}"
        return f"{body} {hashlib.sha256(body.encode()).hexdigest()}\n".encode().ljust(_SLOT_BYTES, b"\0")

    @classmethod
    def from_slot(cls, slot: bytes) -> Note | None:
        """What a slot says; none for one that was torn or altered."""
        try:
            device, generation, _ = slot.rstrip(b"\0").decode("ascii").split(" ")
            note = cls(device, int(generation))
        except ValueError:
            return None
        return note if note.slot() == slot else None


class Mark:
    """The open mark of a vault."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # What this process wrote or read last, so that it need not check its own notes again.
        self._generations: dict[bytes, int] = {}

    @classmethod
    def create(cls, path: Path, note: Note) -> None:
        """Write a mark whole, in place of any old one, and durably."""
        write_durably(path, note.slot() * _SLOTS)

    @classmethod
    def open(cls, path: Path) -> Self:
        return cls(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))

    def read(self) -> Note | None:
        """The newest note, if any is whole."""
        notes = [note for note in map(Note.from_slot, self._slots()) if note is not None]
        return max(notes, key=lambda note: note.generation, default=None)

    def advance(self, note: Note) -> None:
        """Note a commit; an older one than is noted already changes nothing."""
        # Other processes note their commits too, in whatever order they get to it.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            slots = self._slots()
            known = [self._generation(slot) for slot in slots]
            if note.generation > max(known):
                older = known.index(min(known))
                slots[older], known[older] = note.slot(), note.generation
                os.pwrite(self._descriptor, slots[older], older * _SLOT_BYTES)
            self._generations = dict(zip(slots, known, strict=True))
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        try:
            sync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def _slots(self) -> list[bytes]:
        return [os.pread(self._descriptor, _SLOT_BYTES, slot * _SLOT_BYTES) for slot in range(_SLOTS)]

    def _generation(self, slot: bytes) -> int:
        known = self._generations.get(slot)
        if known is not None:
            return known
        note = Note.from_slot(slot)
        return -1 if note is None else note.generation
