"""Who a device is to one server: its keys, its certificate, and when that must be renewed.

    new -> (invitation redeemed) enrolled -> (two thirds of its life) renewal due -> enrolled ... | expired

Three keys, none shared, because each lives for another time. The TLS key (P-256) is replaced at every renewal. The
signing key (Ed25519) vouches for updates as long as the device is enrolled, and is shredded when it leaves. The
ledger's key (`device_sdk.ledger_access`) belongs to the device and to no server: it outlives every enrolment, or
leaving and coming back would reset the budget. What a server sees of it is a key derived for that server alone. Keys
and the request made with them are on disk before they are used, so that a device killed while it enrols asks again
with the same ones, which the server answers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Self

from device_sdk.errors import AlreadyEnrolled, CertificateRefused, NotEnrolled
from device_sdk.events import emit
from device_sdk.ledger_access import ledger_keys
from device_sdk.tls_keys import certificate_request, check_certificate, names_in, new_private_key, validity
from privacy.canonical import canonical, parse, take_hex, take_text
from privacy.keys import SigningKey

if TYPE_CHECKING:
    from device_sdk.vault import Vault
    from device_sdk.wire.channel import Credentials
    from device_sdk.wire.messages import EnrolmentReply

__all__ = ["RENEWAL_FRACTION", "Enrolment", "Identity", "Standing", "ledger_keys"]

RENEWAL_FRACTION = 2 / 3
_RECORD = "current"
_SHOWN = "shown"
_EXCERPT, _WHOLE_LEDGER = "excerpt", "ledger"
_HEX = ("tls_key", "request", "signing", "next_key", "next_request")


class Standing(StrEnum):
    """Where a device stands with a server."""

    NEW = "new"
    ENROLLED = "enrolled"
    RENEWAL_DUE = "renewal due"
    EXPIRED = "expired"
    """Renewal needs a valid certificate, so a new invitation is needed."""


@dataclass(frozen=True)
class Enrolment:
    """What a server told a device that it let in."""

    device: str
    server: str
    """The server's name in ledgers and receipts."""
    server_key: bytes
    gateway: str
    authority: bytes
    certificate: bytes


@dataclass(frozen=True)
class _Secrets:
    tls_key: bytes = field(repr=False)
    """PKCS#8 in PEM."""
    request: bytes
    signing: bytes = field(repr=False)
    next_key: bytes = field(default=b"", repr=False)
    """The key of a renewal that was asked for and not answered yet."""
    next_request: bytes = b""
    is_excerpt: bool = True
    """Whether the server is shown a ledger's key, name and numbers of its own; not if it enrolled before that."""


class Identity:
    """One device at one server. `of` finds it, or makes its keys."""

    def __init__(
        self, vault: Vault, server: str, secrets: _Secrets, enrolment: Enrolment | None, clock: Callable[[], float]
    ) -> None:
        self._vault, self._table = vault, vault.table(server, "identity")
        self._server, self._secrets, self._clock = server, secrets, clock
        self.enrolment = enrolment

    @classmethod
    def of(cls, vault: Vault, server: str, clock: Callable[[], float] = time.time) -> Self:
        """The identity kept for `server` (as the app names it); new keys, on disk, if there is none."""
        # In one transaction: of two processes that start together one makes the keys and the other finds them.
        with vault.changing():
            kept = vault.table(server, "identity").get(_RECORD)
            if kept is not None:
                return cls(vault, server, *_parsed(kept), clock)
            key = new_private_key()
            secrets = _Secrets(key, certificate_request(key), SigningKey.generate().to_bytes())
            identity = cls(vault, server, secrets, None, clock)
            identity._keep(secrets, None)
        emit("identity_created", server=server)
        return identity

    @cached_property
    def signing_key(self) -> SigningKey:
        """Signs updates; its public half is enrolled. It lives as long as the enrolment."""
        return SigningKey(self._secrets.signing)

    @property
    def is_excerpt(self) -> bool:
        """Whether this server is shown an excerpt of the ledger, or the ledger itself as it was when it enrolled."""
        return self._secrets.is_excerpt

    @cached_property
    def ledger_key(self) -> SigningKey:
        """What signs receipts for this server; the same however often it is left and joined again."""
        keys = ledger_keys(self._vault)
        return keys.shown_at(self._server).signing if self.is_excerpt else keys.signing

    @property
    def certificate_request(self) -> bytes:
        """PKCS#10 in DER: the same bytes however often enrolment is tried."""
        return self._secrets.request

    @property
    def standing(self) -> Standing:
        if self.enrolment is None:
            return Standing.NEW
        begins, ends = validity(self.enrolment.certificate)
        now = self._now()
        if now >= ends:
            return Standing.EXPIRED
        return Standing.RENEWAL_DUE if now >= begins + (ends - begins) * RENEWAL_FRACTION else Standing.ENROLLED

    @property
    def enrolled(self) -> Enrolment:
        """The enrolment; `NotEnrolled` if there is none."""
        if self.enrolment is None:
            raise NotEnrolled(
                f"this device is not enrolled at {self._server}; enrol it with an invitation; nothing was sent"
            )
        return self.enrolment

    @property
    def credentials(self) -> Credentials:
        """What to show to the server; `NotEnrolled` before enrolment."""
        from device_sdk.wire.channel import Credentials

        enrolment = self.enrolled
        return Credentials(enrolment.certificate, self._secrets.tls_key, enrolment.authority)

    def enrol(self, reply: EnrolmentReply) -> None:
        """Keep the server's answer to `certificate_request`; `CertificateRefused` if it is not one."""
        # The same answer may come twice, after a kill; one for an expired enrolment replaces it.
        if self.standing in {Standing.ENROLLED, Standing.RENEWAL_DUE} and reply.server != self.enrolled.server:
            raise AlreadyEnrolled(
                f"this device is enrolled at {self._server} already; leave first; nothing was changed"
            )
        check_certificate(reply.certificate, reply.authority, self._secrets.tls_key, self._now())
        self._keep(
            self._secrets,
            Enrolment(
                device=reply.device,
                server=reply.server,
                server_key=reply.server_key,
                gateway=reply.gateway,
                authority=reply.authority,
                certificate=reply.certificate,
            ),
        )
        self._announce()

    def renewal_request(self) -> bytes:
        """PKCS#10 in DER of the next TLS key, which is on disk; the same bytes until `renew` is called."""
        enrolment = self.enrolled
        if not self._secrets.next_request:
            key = new_private_key()
            self._keep(replace(self._secrets, next_key=key, next_request=certificate_request(key)), enrolment)
        return self._secrets.next_request

    def renew(self, certificate: bytes) -> None:
        """Go on with the certificate for `renewal_request`; `CertificateRefused` keeps the present one."""
        enrolment = self.enrolled
        key, request = self._secrets.next_key, self._secrets.next_request
        if not key:
            raise CertificateRefused("no renewal was asked for; the certificate was not kept")
        check_certificate(certificate, enrolment.authority, key, self._now())
        if names_in(certificate) != names_in(enrolment.certificate):
            raise CertificateRefused("the new certificate names another device; the present one stays in use")
        secrets = replace(self._secrets, tls_key=key, request=request, next_key=b"", next_request=b"")
        self._keep(secrets, replace(enrolment, certificate=certificate))
        self._announce()

    def _keep(self, secrets: _Secrets, enrolment: Enrolment | None) -> None:
        self._table.put(_RECORD, _document(secrets, enrolment))
        self._secrets, self.enrolment = secrets, enrolment

    def _announce(self) -> None:
        ends = validity(self.enrolled.certificate)[1]
        emit("certificate_stored", server=self._server, expires=ends.isoformat(timespec="seconds"))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _document(secrets: _Secrets, enrolment: Enrolment | None) -> bytes:
    fields = {name: getattr(secrets, name).hex() for name in _HEX}
    fields[_SHOWN] = _EXCERPT if secrets.is_excerpt else _WHOLE_LEDGER
    if enrolment is not None:
        fields |= {
            "device": enrolment.device,
            "server": enrolment.server,
            "gateway": enrolment.gateway,
            "server_key": enrolment.server_key.hex(),
            "authority": enrolment.authority.hex(),
            "certificate": enrolment.certificate.hex(),
        }
    return canonical(fields)


def _parsed(document: bytes) -> tuple[_Secrets, Enrolment | None]:
    fields = parse(document)
    is_excerpt = fields.pop(_SHOWN, _WHOLE_LEDGER) == _EXCERPT
    secrets = _Secrets(**{name: take_hex(fields, name) for name in _HEX}, is_excerpt=is_excerpt)
    if not fields:
        return secrets, None
    return secrets, Enrolment(
        device=take_text(fields, "device"),
        server=take_text(fields, "server"),
        server_key=take_hex(fields, "server_key"),
        gateway=take_text(fields, "gateway"),
        authority=take_hex(fields, "authority"),
        certificate=take_hex(fields, "certificate"),
    )
