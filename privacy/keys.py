"""The ledger's two secrets: an Ed25519 key that signs its entries, and a key that seals answers.

What a server sees is signed by a key of that server's own, derived from the first (`shown_at`), so that two servers
cannot tell by their receipts that they talk to the same device. The key of the ledger's mark is derived too.

They live in a vault (`to_bytes`, `from_bytes`) or, where an operator says so, in a key file of mode
0600. There is no third place and no fallback: a key that cannot be read is an error. Secrets stand in
no repr, no log, no pickle. Python cannot wipe memory; a process that holds keys should not dump core.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.durable import sync, sync_directory
from privacy.errors import LedgerUnavailable
from privacy.sealing import KEY_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"covey-ledger-keys-v1\n"
_LENGTH = len(_MAGIC) + 2 * KEY_BYTES
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SHOWN_TAG = b"covey-shown-v1"
_MARK_TAG = b"covey-ledger-mark-v1"
_NAME_TAG = b"covey-shown-name-v1"
_NAME_BYTES = 16


class SigningKey:
    """An Ed25519 key that signs statements; each kind of statement carries a tag of its own."""

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public_key = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(os.urandom(KEY_BYTES))

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)

    def to_bytes(self) -> bytes:
        """The secret, for a vault to seal."""
        return self._key.private_bytes_raw()

    def __repr__(self) -> str:
        return f"SigningKey(public_key={self.public_key.hex()[:12]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not pickled; pass `to_bytes` to a vault")


@dataclass(frozen=True)
class ShownKey:
    """The key and the name under which one server knows a device's ledger."""

    signing: SigningKey

    @cached_property
    def ledger(self) -> str:
        return shown_name(self.signing.public_key)


class LedgerKeys:
    """What a device needs to write its ledger. Keep it apart from other keys: shredding those must not reset it."""

    def __init__(self, signing: SigningKey, sealing: bytes) -> None:
        self.signing = signing
        self.sealing = sealing

    @classmethod
    def generate(cls) -> LedgerKeys:
        return cls(SigningKey.generate(), os.urandom(KEY_BYTES))

    @property
    def public_key(self) -> bytes:
        return self.signing.public_key

    @cached_property
    def marking(self) -> bytes:
        """Seals the ledger's mark."""
        return self._derived(_MARK_TAG)

    def shown_at(self, place: str) -> ShownKey:
        """What the server at `place`, as the device calls it, sees in place of `signing`: always the same, and its own.

        `place` is the device's name for the server and not the server's for itself, so that no two servers can
        have themselves shown the same key.
        """
        return ShownKey(SigningKey(self._derived(_SHOWN_TAG + place.encode())))

    def _derived(self, purpose: bytes) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, None, purpose).derive(self.signing.to_bytes())

    def to_bytes(self) -> bytes:
        """Both secrets, for a vault to seal."""
        return _MAGIC + self.signing.to_bytes() + self.sealing

    @classmethod
    def from_bytes(cls, secret: bytes) -> LedgerKeys:
        if len(secret) != _LENGTH or not secret.startswith(_MAGIC):
            raise LedgerUnavailable("these bytes are not ledger keys; use what `to_bytes` gave; nothing was opened")
        body = secret[len(_MAGIC) :]
        return cls(SigningKey(body[:KEY_BYTES]), body[KEY_BYTES:])

    @classmethod
    def create_file(cls, path: Path) -> LedgerKeys:
        """New keys in a new file that only its owner may read; an existing file is never replaced."""
        keys = cls.generate()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                # The mode given to `open` is only a wish: the umask may take bits from it.
                os.fchmod(file.fileno(), 0o600)
                file.write(keys.to_bytes())
                file.flush()
                sync(file.fileno())
            sync_directory(path.parent)
        except OSError as error:
            raise LedgerUnavailable(
                f"the key file {path.name} could not be written ({error.strerror}); no ledger was opened"
            ) from error
        return keys

    @classmethod
    def from_file(cls, path: Path) -> LedgerKeys:
        """The keys in a file that belongs to this user and that nobody else can read."""
        try:
            # Non-blocking, because a named pipe of this name would otherwise be waited for.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                _check_private(os.fstat(file.fileno()), path)
                secret = file.read(_LENGTH + 1)
        except OSError as error:
            raise LedgerUnavailable(
                f"the key file {path.name} could not be read ({error.strerror}); nothing was opened"
            ) from error
        return cls.from_bytes(secret)

    def __repr__(self) -> str:
        return f"LedgerKeys(public_key={self.public_key.hex()[:12]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not pickled; pass `to_bytes` to a vault")


def shown_name(public_key: bytes) -> str:
    """The ledger's name at the server that is shown this key."""
    return hashlib.sha256(_NAME_TAG + public_key).digest()[:_NAME_BYTES].hex()


def check_signature(public_key: bytes, statement: bytes, signature: bytes) -> None:
    """Raise cryptography's `InvalidSignature` unless `public_key` signed `statement`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
    except ValueError as error:
        raise InvalidSignature from error
    key.verify(signature, statement)


def _check_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise LedgerUnavailable(f"the key file {path.name} is not a regular file; nothing was opened")
    if status.st_uid != os.geteuid():
        raise LedgerUnavailable(f"the key file {path.name} belongs to another user; nothing was opened")
    if status.st_mode & _OTHERS:
        raise LedgerUnavailable(
            f"the key file {path.name} is open to other users; make it private (chmod 600) and, if anyone may have "
            "read it, enrol with new keys; nothing was opened"
        )
