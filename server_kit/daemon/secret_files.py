"""The server's secrets: each in a file that only its owner can read, or in the environment. There is no third place.

A secret in the environment wins, so that a vault or an orchestrator can hand it in; then there need be no file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.durable import write_durably
from privacy.sealing import KEY_BYTES
from server_kit.errors import SecretUnusable

if TYPE_CHECKING:
    from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class SecretFiles:
    """The directory of secrets. `name` is a file in it, and COVEY_NAME in the environment."""

    directory: Path

    def path(self, name: str) -> Path:
        return self.directory / name

    def read(self, name: str) -> bytes:
        """The secret; `SecretUnusable` if it is missing or others could have read it."""
        if (given := os.environ.get(variable_of(name))) is not None:
            return given.encode()
        found = self.read_file(name)
        if found is None:
            raise SecretUnusable(
                f"the secret {name} is neither in {self.directory.name}/ nor in {variable_of(name)}; restore it from "
                "your backup; nothing was started"
            )
        return found

    def read_file(self, name: str) -> bytes | None:
        """What the file holds; None if there is no such file."""
        try:
            # Non-blocking, because a named pipe of this name would otherwise be waited for.
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SecretUnusable(
                f"the secret {name} could not be read ({error.strerror}); nothing was started"
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            check_private(os.fstat(file.fileno()), name)
            return file.read(_MOST_BYTES)

    def read_key(self, name: str) -> bytes:
        """A key of 32 bytes, written as 64 hexadecimal digits."""
        try:
            key = bytes.fromhex(self.read(name).decode("ascii").strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise SecretUnusable(
                f"the secret {name} is not {KEY_BYTES * 2} hexadecimal digits; restore it from your backup; "
                "nothing was started"
            )
        return key

    def write(self, name: str, secret: bytes) -> None:
        """Keep a secret, durably and privately, in place of an older one."""
        write_durably(self.path(name), secret)

    def create_key(self, name: str) -> None:
        """A new key of 32 bytes."""
        self.write(name, os.urandom(KEY_BYTES).hex().encode() + b"\n")

    def exposed(self) -> list[str]:
        """The files that others could read, and why, one sentence each."""
        faults = []
        for path in sorted(self.directory.iterdir()):
            try:
                check_private(path.lstat(), path.name)
            except SecretUnusable as error:
                faults.append(str(error))
        return faults


def variable_of(name: str) -> str:
    """The environment's name for a secret: `store.key` is COVEY_STORE_KEY."""
    return f"COVEY_{name.replace('.', '_').upper()}"


def check_private(status: os.stat_result, name: str) -> None:
    """Refuse a secret that is no plain file of this user alone."""
    if not stat.S_ISREG(status.st_mode):
        raise SecretUnusable(f"the secret {name} is not a regular file; nothing was started")
    if status.st_uid != os.geteuid():
        raise SecretUnusable(
            f"the secret {name} belongs to another user; run the server as its owner; nothing was started"
        )
    if status.st_mode & _OTHERS:
        raise SecretUnusable(
            f"the secret {name} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}); chmod 600 it and, if "
            "anyone may have read it, replace it; nothing was started"
        )
