"""One process runs a device: two would compete for one budget and one identity."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_sdk.errors import DeviceBusy
from device_sdk.vault.files import unavailable
from privacy.durable import make_directory

if TYPE_CHECKING:
    from pathlib import Path


@contextmanager
def running(directory: Path) -> Iterator[None]:
    """Be the one process that runs the device in `directory`; `DeviceBusy` if another is."""
    with unavailable("locked"):
        make_directory(directory)
        descriptor = os.open(directory / "device.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DeviceBusy("another process runs this device; stop it or let it finish; nothing was started") from None
    try:
        yield
    finally:
        os.close(descriptor)
