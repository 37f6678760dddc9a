"""The checkpoints of a federation, line by line: one line for each cohort, and one for the federation itself.

A checkpoint is written aside, synced, renamed, and never overwritten: its name has a random end. It counts once the
store names it, in the transaction that says what it is about. A newer one that the store does not name was written
by a process that died before it could say so, and is not looked at.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from privacy.durable import make_directory
from server_kit.checkpoints.file_format import file_bytes, read_file, write_file
from server_kit.errors import CheckpointNotWritten, CorruptCheckpoint, NoCheckpoint, StoreUnavailable

if TYPE_CHECKING:
    from server_kit.checkpoints.packing import Packed
    from server_kit.interfaces import CohortId
    from server_kit.store.blobs import Blobs

log = logging.getLogger(__name__)

OF_FEDERATION = "federation"
_COPY_BYTES = 1 << 20
_NAME = re.compile(r"checkpoints/(?P<line>[^/]+)/(?P<number>\d{12,})-[0-9a-f]{16}\.safetensors")


def of_cohort(cohort: CohortId) -> str:
    """The line of a cohort's checkpoints."""
    return f"cohort-{cohort}"


@dataclass(frozen=True)
class Found:
    """The newest checkpoint of a line that could be read."""

    name: str
    number: int
    packed: Packed
    unreadable: tuple[str, ...] = ()
    """Newer ones that could not."""

    @property
    def fell_back(self) -> bool:
        """Whether steps were lost: this is not the checkpoint that should have been there."""
        return bool(self.unreadable)


@dataclass(frozen=True)
class Checkpoints:
    """Writes and finds checkpoints. `scratch` is a directory of this machine for drafts, best on the disk of `blobs`.

    Whoever writes a large one to a line removes the drafts that the dead have left there; the store's `sweep` removes
    those of small ones.
    """

    blobs: Blobs
    scratch: Path
    keep: int = 3
    small_bytes: int = 1 << 20
    """What has fewer is put together in memory and needs no draft."""

    def write(self, line: str, number: int, packed: Packed) -> str:
        """Put a checkpoint away for good; its name. `number` is the cohort's version, or the federation's steps."""
        name = f"{_folder(line)}{number:012}-{secrets.token_hex(8)}.safetensors"
        try:
            self._write(line, name, packed)
        except (OSError, SafetensorError, StoreUnavailable) as error:
            raise CheckpointNotWritten(
                f"checkpoint {number} of {line} was not written ({error}); see to the disk and start again; those "
                "before it are untouched"
            ) from error
        return name

    def read(self, name: str) -> Packed:
        """This checkpoint and no other."""
        try:
            with self._here(name) as path:
                return read_file(path, name)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"checkpoint {name} is gone; restore it from a backup") from error

    def names(self, line: str) -> list[str]:
        """All of a line that are there, oldest first; the newest may not count yet."""
        return sorted(self._names(line))

    def latest(self, line: str, named: str | None = None) -> Found:
        """The newest checkpoint that can be read, from the one that the store names on; without a name, from the last.

        One that cannot be read is logged and passed over.
        """
        unreadable: list[str] = []
        for name in self._candidates(line, named):
            try:
                packed = self.read(name)
            except CorruptCheckpoint as error:
                log.error("checkpoint cannot be read", extra={"checkpoint": name, "why": str(error)})  # noqa: TRY400
                unreadable.append(name)
                continue
            if unreadable:
                log.warning("fell back to an earlier checkpoint", extra={"checkpoint": name, "passed": len(unreadable)})
            return Found(name, _number(name), packed, tuple(unreadable))
        raise NoCheckpoint(
            f"{line} has no checkpoint that can be read, and {len(unreadable)} that cannot; restore a backup; "
            "nothing was started"
        )

    def prune(self, line: str, named: Collection[str], keep: int | None = None) -> list[str]:
        """Delete all but what the store names and, up to there, the last `keep` numbers; what was deleted.

        Whatever is newer than that may be about to be named, and stays.
        """
        names = self._names(line)
        last = max((_number(name) for name in names if name in named), default=math.inf)
        old = sorted({_number(name) for name in names if _number(name) <= last}, reverse=True)
        expired = set(old[self.keep if keep is None else keep :])
        gone = [name for name in names if _number(name) in expired and name not in named]
        for name in gone:
            self.blobs.delete(name)
        return gone

    def _write(self, line: str, name: str, packed: Packed) -> None:
        if sum(tensor.nbytes for tensor in packed.tensors.values()) < self.small_bytes:
            self.blobs.put(name, file_bytes(packed, name))
            return
        with _drafting(self.scratch / line) as draft:
            write_file(draft, packed, name)
            self.blobs.put(name, draft)

    def _candidates(self, line: str, named: str | None) -> Iterator[str]:
        names = self._names(line)
        if named is not None:
            newest = _number(named)
            yield named
            names = [name for name in names if name != named and _number(name) <= newest]
        yield from sorted(names, reverse=True)

    def _names(self, line: str) -> list[str]:
        return [name for name in self.blobs.list(_folder(line)) if _NAME.fullmatch(name)]

    @contextmanager
    def _here(self, name: str) -> Iterator[Path]:
        """The file on this machine: only a file can be mapped, and it stays mapped when its name is gone."""
        path = self.blobs.path(name)
        if path is not None:
            yield path
            return
        with _drafting(self.scratch / "read") as copy:
            with self.blobs.open(name) as source, copy.open("wb") as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
            yield copy


@contextmanager
def _drafting(place: Path) -> Iterator[Path]:
    """A file for a while, in a folder of its own, since whoever writes it may put others beside it."""
    make_directory(place)
    for folder in place.glob("*-*"):
        process = folder.name.partition("-")[0]
        if process.isdecimal() and not _lives(int(process)):
            shutil.rmtree(folder, ignore_errors=True)
    folder = place / f"{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder / "draft"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _folder(line: str) -> str:
    return f"checkpoints/{line}/"


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptCheckpoint(f"{name!r} is not the name of a checkpoint; nothing was read")
    return int(match["number"])
