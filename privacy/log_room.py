"""Room in a write-ahead log before it is needed, so that most commits write where the file already reaches.

A sync of bytes that make a file longer also writes down its new length, through a journal that all files of a disk
share: several times as slow where others write too. SQLite adds to its log commit by commit; we lengthen it in larger
steps, by zeros. SQLite stops reading at the first frame that is not of the present log (its salt and checksum say so),
as it does at what an earlier log has left, so zeros at the end mean nothing to it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

STEP_BYTES: Final = 1 << 19
MOST_BYTES: Final = 1 << 22
"""About where SQLite begins its log anew: it will not be much longer."""


class LogRoom:
    """The log of one database, as one connection knows it."""

    def __init__(self, database: Path) -> None:
        self._log = database.with_name(f"{database.name}-wal")
        self._reaches = 0

    def make(self) -> None:
        """Lengthen the log if SQLite has come to its end; only inside a writing transaction, so that nobody else adds.

        What a full disk refuses is not needed: the transaction goes on with what room there is.
        """
        try:
            size = self._log.stat().st_size
        except OSError:
            return
        if size == 0:
            self._reaches = 0  # it was emptied
        elif self._reaches < size < MOST_BYTES:
            self._reaches = size + STEP_BYTES
            with suppress(OSError):
                self._lengthen(size)

    def _lengthen(self, size: int) -> None:
        log = os.open(self._log, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.pwrite(log, bytes(STEP_BYTES), size) < STEP_BYTES:
                os.ftruncate(log, size)  # a disk that is nearly full is not to be filled up with nothing
        finally:
            os.close(log)
