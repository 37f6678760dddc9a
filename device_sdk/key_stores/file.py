"""Keys in a file of mode 0600. Whoever can read it can open the vault: chosen by a person, never assumed."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_sdk.errors import KeyUnavailable, WrongKey
from device_sdk.key_stores.protocol import KEY_BYTES, Unpicklable, decoded, written
from privacy.durable import make_directory, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FileKeyStore(Unpicklable):
    """A file that only its owner can read: for devices with nobody to type and no key store. Chosen, never assumed."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self, name: str) -> tuple[bytes, str]:
        key = os.urandom(KEY_BYTES)
        with self._locked():
            self._write({**self._read(), name: key})
        return key, ""

    def fetch(self, name: str, parameters: str) -> bytes:
        keys = self._read()
        if name not in keys:
            raise KeyUnavailable(
                f"the key file {self._path.name} does not hold this vault's key; put back the file that was made with "
                "the vault; nothing was opened"
            )
        return keys[name]

    def discard(self, name: str) -> None:
        with self._locked():
            keys = self._read()
            if keys.pop(name, None) is not None:
                self._write(keys)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Several devices may keep their keys in one file; none may write over what another just added."""
        lock = self._path.with_name(self._path.name + ".lock")
        try:
            make_directory(self._path.parent)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _not_written(self._path.name, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, bytes]:
        try:
            # Non-blocking, because a named pipe of this name would otherwise be waited for.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "r", encoding="ascii") as file:
                _check_private(os.fstat(descriptor), self._path.name)
                lines = file.read().splitlines()
            return {name: decoded(key) for name, key in (line.split(" ") for line in lines)}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise KeyUnavailable(
                f"the key file {self._path.name} could not be read ({error.strerror}); nothing was opened"
            ) from error
        except ValueError:
            raise WrongKey(f"the file {self._path.name} is not a key file; nothing was opened") from None

    def _write(self, keys: dict[str, bytes]) -> None:
        lines = [f"{name} {written(key)}\n" for name, key in sorted(keys.items())]
        try:
            write_durably(self._path, "".join(lines).encode("ascii"))
        except OSError as error:
            raise _not_written(self._path.name, error) from error


def _not_written(name: str, error: OSError) -> KeyUnavailable:
    return KeyUnavailable(f"the key file {name} could not be written ({error.strerror}); nothing was changed")


def _check_private(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyUnavailable(f"the key file {name} is not a regular file; nothing was opened")
    if status.st_uid != os.geteuid():
        raise KeyUnavailable(f"the key file {name} belongs to another user; nothing was opened")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyUnavailable(
            f"the key file {name} is open to other users; make it private (chmod 600) and, if anyone may have read it, "
            "rotate the keys; nothing was opened"
        )
