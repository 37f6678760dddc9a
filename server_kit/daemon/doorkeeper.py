"""Who is calling: the certificate, the register and the TLS version decide, on every call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cryptography import x509

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import DeviceId, ErrorCode
from device_sdk.wire.trust import device_named_in
from server_kit.daemon.transport import check_tls

if TYPE_CHECKING:
    from server_kit.daemon.register import EnrolledDevice, Register


@dataclass(frozen=True)
class Identity:
    """What a certificate says: which device, until when."""

    device: DeviceId
    expires_at: datetime


def identity_of(context: Any) -> Identity:
    """Who calls, by the certificate of the connection and over TLS 1.3; `Refused` otherwise."""
    pems = check_tls(context).get("x509_pem_cert", [])
    identity = _identity_in(bytes(pems[0])) if pems else None
    if identity is None:
        raise Refused(ErrorCode.NOT_ENROLLED, "this certificate names no device; enrol first")
    return identity


def revoked() -> Refused:
    return Refused(ErrorCode.REVOKED, "this device was revoked by the operator; it can no longer take part")


@dataclass(frozen=True)
class Doorkeeper:
    """Admits enrolled devices with a valid certificate."""

    register: Register

    def admit(self, identity: Identity) -> EnrolledDevice:
        """The device as it is enrolled now, or `Refused`."""
        if identity.expires_at <= datetime.now(UTC):
            # The handshake refuses it too; this is for connections that have outlived their certificate.
            raise Refused(
                ErrorCode.CERTIFICATE_EXPIRED,
                f"this device's certificate expired on {identity.expires_at:%Y-%m-%d %H:%M} UTC; renew or enrol again",
            )
        enrolled = self.register.find(identity.device)
        if enrolled is None:
            raise Refused(ErrorCode.NOT_ENROLLED, "this server does not know the device; enrol again")
        if enrolled.revoked:
            raise revoked()
        return enrolled

    def no_longer_welcome(self, identities: Iterable[Identity]) -> dict[Identity, Refused]:
        """Those who would not be admitted any more, each with the reason."""
        refusals = {}
        for identity in identities:
            try:
                self.admit(identity)
            except Refused as refusal:
                refusals[identity] = refusal
        return refusals


@lru_cache(maxsize=4096)
def _identity_in(pem: bytes) -> Identity | None:
    """Cached: a device shows the same certificate with every call."""
    certificate = x509.load_pem_x509_certificate(pem)
    device = device_named_in(certificate)
    return None if device is None else Identity(device, certificate.not_valid_after_utc)
