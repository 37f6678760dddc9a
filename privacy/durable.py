"""Files that survive a power cut: written aside, synced, renamed, and their directory synced."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# On macOS a plain fsync leaves the bytes in the drive's own cache.
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)


def write_durably(path: Path, content: bytes) -> None:
    """Put `content` in place of `path`, private to this user; a crash leaves the old file or the new one, whole."""
    draft = path.with_name(path.name + ".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        sync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Create `path`, private to this user, and make its name durable: files in a lost directory are lost."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    # One by one: `parents=True` would leave those above open to others.
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
        sync_directory(place.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a new file's is not, until its directory is synced."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_content(descriptor: int) -> None:
    """As `sync`, for bytes written over others: the file's length and name have not changed."""
    if _FULL_SYNC is None:
        os.fdatasync(descriptor)
    else:
        sync(descriptor)


def sync(descriptor: int) -> None:
    """Return once what was written is on the medium."""
    if _FULL_SYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_SYNC)
