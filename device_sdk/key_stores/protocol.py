"""What keeps the vault's key-encryption key, and in which form."""

from __future__ import annotations

import base64
import binascii
from typing import NoReturn, Protocol

from device_sdk.errors import WrongKey

KEY_BYTES = 32


class KeyStore(Protocol):
    """Keeps key-encryption keys by name."""

    @property
    def kind(self) -> str:
        """Stands in the vault, so that it is never opened by guessing."""

    def create(self, name: str) -> tuple[bytes, str]:
        """A new key, kept durably under `name`, and its parameters."""

    def fetch(self, name: str, parameters: str) -> bytes:
        """The key that `create` made; `KeyUnavailable` if it cannot be had."""

    def discard(self, name: str) -> None:
        """Destroy a key; one that is not there is no error."""


class Unpicklable:
    """Holds or finds secrets, so it stays where it was made."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("key stores are not pickled; make one where it is needed")


def written(key: bytes) -> str:
    """A key as text."""
    return base64.b64encode(key).decode("ascii")


def decoded(text: str) -> bytes:
    """The key that `written` wrote; `WrongKey` for any other text."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise WrongKey(
            "what is kept as the vault's key is not one; it was altered or is another program's; nothing was opened"
        )
    return key
