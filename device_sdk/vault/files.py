"""The files of a vault, and the lock that creating, rotating and shredding hold.

STATE/vault.db     header, keys, index and records (SQLite; beside it -wal and -shm)
STATE/vault.mark   how far it has come, a second time
STATE/vault.lock   held while keys are made or discarded
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_sdk.errors import VaultUnavailable
from device_sdk.vault.storage import LOCK_TIMEOUT_SECONDS
from privacy.durable import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAUSE_SECONDS = 0.01


class VaultFiles:
    """The directory of one vault."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / "vault.db"
        self.mark = directory / "vault.mark"
        self._lock = directory / "vault.lock"

    def make(self) -> None:
        with unavailable("created"):
            make_directory(self.directory)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep out every other process that would make or discard keys."""
        with unavailable("locked"):
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _wait_for(descriptor)
            yield
        finally:
            os.close(descriptor)


@contextmanager
def unavailable(deed: str, outcome: str = "nothing was changed") -> Iterator[None]:
    """Turn what the operating system refuses into `VaultUnavailable`."""
    try:
        yield
    except OSError as error:
        raise VaultUnavailable(
            f"the vault could not be {deed} ({error.strerror}); make room or grant access and try again; {outcome}"
        ) from error


def _wait_for(descriptor: int) -> None:
    # Not a blocking call: a stopped process that holds the lock would stop this one for good.
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise VaultUnavailable(
                    f"another process has held the vault for {LOCK_TIMEOUT_SECONDS:g} s; let it finish or stop it; "
                    "nothing was changed"
                ) from None
        time.sleep(_PAUSE_SECONDS)
