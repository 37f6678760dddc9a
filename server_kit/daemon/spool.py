"""Where uploads of more than one piece grow until they are whole: in files, so that a cut costs no byte twice.

A device sends one release at a time, so it has one unfinished file at most; beginning another drops the first.
Nothing here is durable: an upload counts only once the desk has stored it.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from device_sdk.wire.errors import PayloadMismatch, Refused
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.tensors import fits

if TYPE_CHECKING:
    from device_sdk.wire.messages import Blob, Chunk, DeviceId

_READ_BYTES = 1 << 20


class Parcel:
    """The bytes of a finished upload, hash-checked: in memory if they came in one piece, else in a file."""

    def __init__(self, blob: Blob, content: memoryview | Path) -> None:
        self.blob = blob
        self._content = content

    @property
    def path(self) -> Path | None:
        """Where the bytes lie, None if in memory; a desk may move the file away."""
        return None if isinstance(self._content, memoryview) else self._content

    def read(self) -> bytes:
        """All bytes at once."""
        return bytes(self._content) if isinstance(self._content, memoryview) else self._content.read_bytes()

    def discard(self) -> None:
        """Forget the bytes; the desk has them."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Intake:
    """One upload as it arrives. Its methods block on the disk."""

    def __init__(self, blob: Blob, path: Path, others: str) -> None:
        self._blob, self._path, self._others = blob, path, others
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.received = 0

    def open(self) -> None:
        """Begin, or go on with what `received` says is there."""
        for other in self._path.parent.glob(self._others):
            if other != self._path:
                other.unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        if self._path.stat().st_size > self._blob.size_bytes:
            self._path.unlink()
            self._path.touch(mode=0o600)
        # Read from its beginning, written at its end.
        self._file = self._path.open("r+b")
        while piece := self._file.read(_READ_BYTES):
            self._hash.update(piece)
            self.received += len(piece)

    def add(self, chunk: Chunk) -> None:
        """Take the next piece; `Refused` for one that is out of place or beyond the declared end."""
        if not fits(chunk, self.received, self._blob):
            raise Refused(
                ErrorCode.OUT_OF_ORDER, "a piece of this upload is out of place or beyond its end; it was not used"
            )
        if self._file is None:
            raise ValueError("this upload is not open; nothing was written")
        self._file.write(chunk.data)
        self._hash.update(chunk.data)
        self.received += len(chunk.data)

    def finish(self) -> Parcel:
        """The whole upload, if its bytes are those that were announced; else it begins again from nothing."""
        self.close()
        if self._hash.digest() != self._blob.sha256:
            self._path.unlink(missing_ok=True)
            raise PayloadMismatch("the bytes of this upload are not those that were announced; they were thrown away")
        return Parcel(self._blob, self._path)

    def close(self) -> None:
        """Stop here; what has arrived is kept for the next attempt."""
        if self._file is not None:
            self._file.close()


class Spool:
    """A directory of unfinished uploads; it belongs to one gateway."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory

    def intake(self, device: DeviceId, blob: Blob) -> Intake:
        """An upload to be opened; opening it drops whatever else the device has not finished."""
        return Intake(blob, self._directory / f"{device}-{blob.sha256.hex()}.part", others=f"{device}-*.part")

    def forget(self, older_than_seconds: float) -> None:
        """Drop what nobody has gone on with for so long."""
        before = time.time() - older_than_seconds
        for path in self._directory.glob("*.part"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
