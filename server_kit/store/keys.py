"""The key-encryption key of a store: from a file that only its owner reads, or from the environment.

One key a line, as 64 hexadecimal digits. The first seals; the others are those it replaced, and open what they sealed
until the store has been opened once with the new one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from privacy.durable import write_durably
from privacy.sealing import KEY_BYTES
from server_kit.errors import StoreKeyRefused

VARIABLE = "COVEY_STORE_KEY"
_MOST_BYTES = 10_000


@dataclass(frozen=True)
class StoreKeys:
    """The key that seals the store's own keys, and earlier ones."""

    current: bytes = field(repr=False)
    earlier: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            keys = [bytes.fromhex(line) for line in text.split()]
        except ValueError:
            keys = []
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            # Outside the handler, and without the text: it may be nearly a key.
            raise StoreKeyRefused(
                f"a store key is {2 * KEY_BYTES} hexadecimal digits, earlier ones on lines below; nothing was opened"
            )
        return cls(keys[0], tuple(keys[1:]))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The keys in a file of mode 0600."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                body = file.read(_MOST_BYTES)
        except OSError as error:
            raise StoreKeyRefused(
                f"the store key {path} cannot be read ({error.strerror}); restore it from your backup; "
                "nothing was opened"
            ) from error
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise StoreKeyRefused(f"others may read the store key {path}; chmod 600 it; nothing was opened")
        return cls.parse(body.decode("ascii", errors="replace"))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The keys in `COVEY_STORE_KEY`; None where it is not set."""
        text = environment.get(VARIABLE)
        return None if text is None else cls.parse(text)

    def renewed(self) -> Self:
        """A new key before these."""
        return type(self)(os.urandom(KEY_BYTES), (self.current, *self.earlier))

    def write(self, path: Path) -> None:
        """Keep the keys in a file of mode 0600, durably."""
        lines = "".join(f"{key.hex()}\n" for key in (self.current, *self.earlier))
        write_durably(path, lines.encode("ascii"))
