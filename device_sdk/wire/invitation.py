"""An invitation: one line of text that lets one device in, and tells it which server to believe.

    covey1-<base64url of: fingerprint (32 bytes), secret (32 bytes), address, first 4 bytes of their SHA-256>

The fingerprint is the SHA-256 of the authority's certificate. The last four bytes catch a mistyped or cut line
before anything is sent. Whoever holds the line can enrol in its owner's place, so it is as secret as a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field

from device_sdk.wire.errors import InvalidInvitation
from device_sdk.wire.messages import HASH_BYTES

SECRET_BYTES = 32
_PREFIX = "covey1-"
_CHECK_BYTES = 4
_LEAST_BYTES = HASH_BYTES + SECRET_BYTES + len("a:1") + _CHECK_BYTES
_MOST_CHARACTERS = 600
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[1-9][0-9]{0,4})")


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def from_text(cls, text: str) -> Address:
        """`host:port` or `[ipv6]:port`; `InvalidInvitation` for anything else."""
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise InvalidInvitation(f"{text[:80]!r} is not host:port; nothing was sent")
        return cls(match["host"].strip("[]"), int(match["port"]))


@dataclass(frozen=True)
class Invitation:
    """Where to enrol, which authority to believe, and the secret that opens the door once."""

    address: Address
    fingerprint: bytes
    secret: bytes = field(repr=False)

    def to_text(self) -> str:
        body = self.fingerprint + self.secret + str(self.address).encode("ascii")
        return _PREFIX + base64.urlsafe_b64encode(body + _check(body)).rstrip(b"=").decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> Invitation:
        """The invitation on a line; spaces and line breaks that crept in are ignored."""
        body = _body("".join(text.split()))
        fingerprint, secret = body[:HASH_BYTES], body[HASH_BYTES : HASH_BYTES + SECRET_BYTES]
        return cls(Address.from_text(body[HASH_BYTES + SECRET_BYTES :].decode("ascii", "replace")), fingerprint, secret)


def _body(text: str) -> bytes:
    if not text.startswith(_PREFIX) or len(text) > _MOST_CHARACTERS:
        raise InvalidInvitation(f"an invitation starts with {_PREFIX}; copy the whole line; nothing was sent")
    encoded = text.removeprefix(_PREFIX)
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInvitation("this invitation has characters of no invitation; copy it again") from error
    body, check = decoded[:-_CHECK_BYTES], decoded[-_CHECK_BYTES:]
    if len(decoded) < _LEAST_BYTES or check != _check(body):
        raise InvalidInvitation("this invitation is cut or mistyped; copy the whole line; nothing was sent")
    return body


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECK_BYTES]
