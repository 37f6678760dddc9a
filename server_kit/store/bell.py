"""A bell between processes: one waits for something to do, another rings when there is; nobody polls.

Many rings before a look are one. A ring that finds nobody is not an error, and one that comes while its listener is
busy is not lost: it is heard at the next `wait`. What there is to do stands in the store, never in the ring, so a bell
may ring for nothing and every listener looks now and then even if it does not.

On one machine a bell is a datagram socket in a directory that only this user can enter. Of two listeners of the same
name the later one hears.
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import stat
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol, Self

from server_kit.errors import StoreUnavailable

_MOST_PATH_BYTES = 100  # the system's limit is 104 on macOS and 108 on Linux
_RING = b"\x07"


class Listener(Protocol):
    """Waits for a ring."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it rang since the last `wait`; at once if it did, else as soon as it does or the time is up."""

    def close(self) -> None: ...


class Bell:
    """The listener `name` of the federation in `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = _folder(directory) / _short(name)
        self._socket = _datagrams()
        try:
            _hang_up(self._socket, self._path)
        except BaseException as error:
            self._socket.close()
            if not isinstance(error, OSError):
                raise
            raise StoreUnavailable(
                f"the bell {name} cannot be hung up ({error.strerror}); look at the temporary directory; "
                "nothing was changed"
            ) from error
        self._inode = self._path.stat().st_ino

    def fileno(self) -> int:
        """For event loops: readable when it rang; `wait(0)` then takes the rings away."""
        return self._socket.fileno()

    def wait(self, timeout_seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_seconds) * 1000)) and self._take_away()

    def close(self) -> None:
        self._socket.close()
        with suppress(FileNotFoundError):
            # Unless a later listener has hung its bell there.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        with suppress(OSError):
            # The last one leaves no directory behind.
            self._path.parent.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_away(self) -> bool:
        with suppress(BlockingIOError):
            while self._socket.recv(len(_RING)):
                pass
        return True


def ring(directory: Path, name: str) -> None:
    """Wake the listener `name` of the federation in `directory`, if there is one."""
    # Full: it has rung often enough to be heard. Refused, forbidden or missing: nobody of ours listens.
    with _datagrams() as ringer, suppress(OSError):
        ringer.sendto(_RING, os.fspath(_folder(directory) / _short(name)))


def _datagrams() -> socket.socket:
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bell.setblocking(False)
    return bell


def _hang_up(bell: socket.socket, path: Path) -> None:
    # Aside first, then renamed: whatever stands there, of a living listener or a dead one, is replaced in one step.
    draft = path.with_name(f"{path.name}{os.urandom(2).hex()}")
    while True:
        try:
            _make_private(path.parent)
            bell.bind(os.fspath(draft))
        except FileNotFoundError:
            # Another listener was the last to leave, just now.
            continue
        draft.replace(path)
        return


def _folder(directory: Path) -> Path:
    return _folder_in(tempfile.gettempdir(), directory)


@lru_cache(maxsize=16)  # every ring asks
def _folder_in(temporary: str, directory: Path) -> Path:
    """Short, because the path of a socket must be; the same for everyone who means the same directory."""
    name = f"covey-{os.getuid()}-{_short(os.fspath(directory.resolve()))}"
    longest = len(os.fsencode(name)) + len(_short("")) + 6
    places = (Path(temporary), Path("/tmp"))  # noqa: S108 - made and checked to be private
    return next((at / name for at in places if len(os.fsencode(at)) + longest < _MOST_PATH_BYTES), places[-1] / name)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StoreUnavailable(
            f"{folder} is not a directory of this user alone; remove it and start again; nothing was changed"
        )


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
