"""A key derived from a passphrase by Argon2id. Nothing is kept but the salt, in the vault's header."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from device_sdk.errors import KeyUnavailable, WrongKey
from device_sdk.key_stores.protocol import KEY_BYTES, Unpicklable

LEAST_CHARACTERS = 12
_SALT_BYTES = 16


@dataclass(frozen=True)
class Argon2Cost:
    """What a guess at the passphrase costs (Argon2id)."""

    iterations: int = 3
    lanes: int = 4
    memory_kib: int = 64 * 1024

    def __post_init__(self) -> None:
        # The upper bounds keep an altered vault from exhausting the device's memory.
        if not (2 <= self.iterations <= 64 and 1 <= self.lanes <= 64 and 19 * 1024 <= self.memory_kib <= 1024 * 1024):
            raise KeyUnavailable(
                "Argon2id costs lie between 2 and 64 iterations, 1 and 64 lanes, 19 MiB and 1 GiB; no key was derived"
            )


class PassphraseKeyStore(Unpicklable):
    """A passphrase that someone types or a service manager hands over, asked for once.

    It is then remembered, as long as the vault is open: a rotation that asked again would seal everything under
    whatever was typed the second time. To change it, rotate to a store of the new one.
    """

    kind = "passphrase"

    def __init__(self, ask: Callable[[], str], cost: Argon2Cost | None = None) -> None:
        self._ask = ask
        self._known: str | None = None
        self._cost = cost or Argon2Cost()

    def create(self, name: str) -> tuple[bytes, str]:
        passphrase = self._passphrase()
        if len(passphrase) < LEAST_CHARACTERS:
            raise KeyUnavailable(
                f"a passphrase has at least {LEAST_CHARACTERS} characters; choose a longer one; no vault was made"
            )
        salt = os.urandom(_SALT_BYTES)
        cost = self._cost
        parameters = f"{cost.iterations},{cost.lanes},{cost.memory_kib},{salt.hex()}"
        return _derived(passphrase, salt, cost, name), parameters

    def fetch(self, name: str, parameters: str) -> bytes:
        try:
            iterations, lanes, memory_kib, salt = parameters.split(",")
            cost, salt_bytes = Argon2Cost(int(iterations), int(lanes), int(memory_kib)), bytes.fromhex(salt)
        except ValueError:
            raise WrongKey(
                "the vault does not say how its passphrase is used; it was altered; nothing was opened"
            ) from None
        return _derived(self._passphrase(), salt_bytes, cost, name)

    def discard(self, name: str) -> None:
        """Nothing is kept: the key was forgotten with its salt."""

    def _passphrase(self) -> str:
        if self._known is None:
            self._known = self._ask()
        return self._known


def _derived(passphrase: str, salt: bytes, cost: Argon2Cost, name: str) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    # One passphrase, typed on another keyboard, may arrive in another Unicode form.
    secret = unicodedata.normalize("NFC", passphrase).encode()
    try:
        derivation = Argon2id(
            salt=salt,
            length=KEY_BYTES,
            iterations=cost.iterations,
            lanes=cost.lanes,
            memory_cost=cost.memory_kib,
            ad=name.encode(),
        )
        return derivation.derive(secret)
    except UnsupportedAlgorithm:
        raise KeyUnavailable(
            "this build of OpenSSL has no Argon2id, so a passphrase cannot be used; install cryptography from its "
            "wheel; no vault was opened"
        ) from None
