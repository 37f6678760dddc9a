"""Whom a device believes: one certificate authority, by fingerprint, and nobody the operating system vouches for.

gRPC checks the chain and the host name, but accepts TLS 1.2 and says little when it refuses. So before a channel
is opened, one plain handshake asks the same questions of Python's own TLS, in TLS 1.3 only, and names the fault.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
import ssl
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from device_sdk.wire.errors import ConnectionLost, Refused, TlsTooOld, UntrustedServer
from device_sdk.wire.messages import ErrorCode

if TYPE_CHECKING:
    from device_sdk.wire.cancelling import Stop
    from device_sdk.wire.invitation import Address
    from device_sdk.wire.messages import DeviceId

ISSUER_EXTENSION = x509.ObjectIdentifier("2.25.306912237486232424817193041573846128467")
"""The authority's certificate inside the server's. The number is made from a UUID, so it needs no registry."""
_DEVICE_URI = re.compile(r"urn:covey:device:([0-9a-f]{32})")
_WORDS_OF_OLD_TLS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION")
_HANG_UPS = 3
# HTTP/2's preface and an empty SETTINGS frame: the least that makes a server speak.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")


@dataclass(frozen=True)
class Credentials:
    """What a device shows to a server, and the one authority it believes."""

    certificate: bytes
    """In DER."""
    private_key: bytes = field(repr=False)
    """PKCS#8 in PEM, not encrypted: it lives in memory only."""
    authority: bytes
    """The pinned authority's certificate, in DER."""


def device_uri(device: DeviceId) -> str:
    """A device's name as its certificate spells it."""
    return f"urn:covey:device:{device}"


def device_named_in(certificate: x509.Certificate) -> DeviceId | None:
    """The device that a certificate was issued to; None if it names no device, or several things."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    (match,) = [_DEVICE_URI.fullmatch(str(name.value)) for name in names] if len(list(names)) == 1 else [None]
    return None if match is None else match[1]


def fetch_authority(address: Address, fingerprint: bytes, timeout_seconds: float, stop: Stop) -> bytes:
    """The certificate (DER) of the authority with this fingerprint, from a server that it vouches for."""
    # Nothing is believed yet: this handshake only asks the server for its certificate.
    asking = _context()
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    leaf = _handshake(asking, address, timeout_seconds, stop)
    authority = _authority_inside(leaf)
    if authority is None or not hmac.compare_digest(hashlib.sha256(authority).digest(), fingerprint):
        raise UntrustedServer(
            f"the server at {address} belongs to another authority than the invitation names; "
            "ask the operator for a new invitation; nothing was sent"
        )
    trusting = _context()
    trusting.load_verify_locations(cadata=authority)
    _handshake(trusting, address, timeout_seconds, stop)
    return authority


class Probe:
    """Finds out, by a handshake, whether device and server accept each other."""

    def __init__(self, credentials: Credentials) -> None:
        self._certificate = credentials.certificate
        self._context = _context()
        self._context.load_verify_locations(cadata=credentials.authority)
        _show(self._context, credentials)

    def check(self, address: Address, timeout_seconds: float, stop: Stop) -> None:
        """Raise `UntrustedServer` unless this server speaks TLS 1.3 and its authority vouches for its name, today.

        `Refused` if it is this device's own certificate that does not hold.
        """
        if is_expired(self._certificate):
            raise Refused(
                ErrorCode.CERTIFICATE_EXPIRED,
                f"this device's certificate expired on {expiry(self._certificate):%Y-%m-%d %H:%M} UTC; enrol again, "
                "or set this device's clock",
            )
        # A server says no to a certificate by hanging up; so does one that dies at that moment, but not thrice.
        if not any(self._answer(address, timeout_seconds, stop) for _ in range(_HANG_UPS)):
            raise Refused(
                ErrorCode.NOT_ENROLLED,
                f"the server at {address} does not accept this device's certificate: another authority issued it, or "
                "one of the two clocks is wrong; enrol again",
            )

    def _answer(self, address: Address, timeout_seconds: float, stop: Stop) -> bytes:
        return _handshake(self._context, address, timeout_seconds, stop, _GREETING)


def check_issued(certificate: bytes, authority: bytes, public_key: bytes, device: DeviceId) -> None:
    """Raise `UntrustedServer` unless the authority gave `device` this certificate (DER) for this key (SPKI in DER)."""
    try:
        leaf, issuer = x509.load_der_x509_certificate(certificate), x509.load_der_x509_certificate(authority)
        leaf.verify_directly_issued_by(issuer)
        found = leaf.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except (ValueError, TypeError, InvalidSignature) as error:
        raise UntrustedServer("the server sent a certificate that its authority did not issue; it was not kept") from (
            error
        )
    if found != public_key or device_named_in(leaf) != device:
        raise UntrustedServer("the server sent a certificate for another device or key; it was not kept")
    if is_expired(certificate):
        raise UntrustedServer("the server sent a certificate that has expired, or this clock is wrong; it was not kept")


def expiry(certificate: bytes) -> datetime:
    """When a certificate (DER) ends."""
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc


def is_expired(certificate: bytes, now: datetime | None = None) -> bool:
    return expiry(certificate) <= (now or datetime.now(UTC))


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    return context


def _show(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Let `context` show a certificate. Python takes keys from files only, so it is encrypted and gone at once."""
    password = secrets.token_bytes(32).hex().encode()
    key = serialization.load_pem_private_key(credentials.private_key, password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        # Its key derivation is quick and weak, which is no matter for a password of 32 random bytes.
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(password),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shown"
        file.write_bytes(ssl.DER_cert_to_PEM_cert(credentials.certificate).encode() + encrypted)
        context.load_cert_chain(file, password=password)


def _handshake(
    context: ssl.SSLContext, address: Address, timeout_seconds: float, stop: Stop, greeting: bytes = b""
) -> bytes:
    """The server's certificate (DER) after a handshake; after a greeting, its answer, empty if it hangs up."""
    try:
        with (
            socket.create_connection((address.host, address.port), timeout_seconds) as plain,
            # A handle of its own: wrapping takes the socket away from `plain`.
            plain.dup() as handle,
            stop.calling(partial(_hang_up, handle)),
            context.wrap_socket(plain, server_hostname=address.host) as wrapped,
        ):
            return _answer(wrapped, greeting) if greeting else wrapped.getpeercert(binary_form=True) or b""
    except ssl.SSLCertVerificationError as error:
        raise UntrustedServer(
            f"the server at {address} cannot prove who it is ({error.verify_message}); nothing was sent"
        ) from error
    except ssl.SSLError as error:
        raise _broken_handshake(address, error.reason or "") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConnectionLost(f"the server at {address} cannot be reached ({reason}); try again later") from error


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _answer(connection: ssl.SSLSocket, greeting: bytes) -> bytes:
    try:
        connection.sendall(greeting)
        return connection.recv(1)
    except (ssl.SSLError, ConnectionError):
        return b""


def _broken_handshake(address: Address, reason: str) -> UntrustedServer | ConnectionLost:
    if any(words in reason for words in _WORDS_OF_OLD_TLS):
        return TlsTooOld(f"the server at {address} does not speak TLS 1.3; it must be updated; nothing was sent")
    return ConnectionLost(f"the handshake with the server at {address} broke off ({reason}); try again later")


def _authority_inside(leaf: bytes) -> bytes | None:
    try:
        found = x509.load_der_x509_certificate(leaf).extensions.get_extension_for_oid(ISSUER_EXTENSION).value
    except (ValueError, x509.ExtensionNotFound):
        return None
    return found.value if isinstance(found, x509.UnrecognizedExtension) else None
