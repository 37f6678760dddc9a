"""SHA-256 in a thread beside the transfer: Python lets go of its lock while it hashes, so neither waits."""

from __future__ import annotations

import hashlib
import queue
import threading


class BackgroundHash:
    """Hashes pieces in the order they are given. The thread ends with `digest`, or with the object."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    def update(self, piece: memoryview) -> None:
        """Hash this too; it must stay as it is until `digest`."""
        if self._worker is None:
            self._worker = threading.Thread(target=_work, args=(self._hash, self._pieces), daemon=True)
            self._worker.start()
        self._pieces.put(piece)

    def digest(self) -> bytes:
        """The hash of all pieces so far; there are no more."""
        self._pieces.put(None)
        if self._worker is not None:
            self._worker.join()
            self._worker = None
        return self._hash.digest()

    def __del__(self) -> None:
        self._pieces.put(None)


def _work(into: hashlib._Hash, pieces: queue.SimpleQueue[memoryview | None]) -> None:
    while (piece := pieces.get()) is not None:
        into.update(piece)
