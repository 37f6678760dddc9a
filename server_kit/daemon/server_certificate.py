"""The certificate that the server shows: issued by its own authority, and anew long before it ends."""

from __future__ import annotations

import fcntl
import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from server_kit.daemon.authority import SERVER_LIFETIME, ServerCertificate

if TYPE_CHECKING:
    from server_kit.daemon.authority import Authority
    from server_kit.daemon.secret_files import SecretFiles

FILE = "server.pem"
RENEW_BEFORE = SERVER_LIFETIME / 3
_END = b"-----END CERTIFICATE-----\n"


def current_certificate(
    secrets: SecretFiles, authority: Authority, hosts: Sequence[str], now: datetime | None = None
) -> ServerCertificate:
    """The server's certificate for these hosts; a new one if there is none, or it is another's or ends soon."""
    now = now or datetime.now(UTC)
    with _alone(secrets):
        kept = _split(secrets.read_file(FILE) or b"")
        if kept is not None and serves(kept, authority, hosts, now):
            return kept
        fresh = authority.issue_server(hosts, now=now)
        # One file, so that no crash parts a key from its certificate.
        secrets.write(FILE, fresh.certificate + fresh.private_key)
        return fresh


def expires_at(certificate: ServerCertificate) -> datetime:
    """When devices stop believing it."""
    return x509.load_pem_x509_certificate(certificate.certificate).not_valid_after_utc


def authority_begins_at(authority: Authority) -> datetime:
    """From when on anything that the authority signs is believed."""
    return x509.load_der_x509_certificate(authority.certificate).not_valid_before_utc


def authority_expires_at(authority: Authority) -> datetime:
    """When nothing that the authority signed is believed any more."""
    return x509.load_der_x509_certificate(authority.certificate).not_valid_after_utc


def serves(shown: ServerCertificate, authority: Authority, hosts: Sequence[str], now: datetime) -> bool:
    """Whether a certificate is whole, this authority's, names exactly these hosts, and is good for a while."""
    try:
        certificate = x509.load_pem_x509_certificate(shown.certificate)
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(authority.certificate))
        key = serialization.load_pem_private_key(shown.private_key, password=None)
    except (InvalidSignature, ValueError, TypeError):
        return False
    if key.public_key() != certificate.public_key():
        return False
    named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = {str(name.value) for name in named}
    return names == {_as_named(host) for host in hosts} and now + RENEW_BEFORE < certificate.not_valid_after_utc


def renew_after_seconds(certificate: ServerCertificate, now: datetime | None = None) -> float:
    """In how many seconds `current_certificate` will give another one."""
    due = expires_at(certificate) - RENEW_BEFORE - (now or datetime.now(UTC))
    return max(0.0, due / timedelta(seconds=1))


def _split(content: bytes) -> ServerCertificate | None:
    certificate, end, key = content.partition(_END)
    return ServerCertificate(certificate + end, key) if end and key else None


def _as_named(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


@contextmanager
def _alone(secrets: SecretFiles) -> Iterator[None]:
    """Two processes must not issue at the same time: one would show a key that the file no longer has."""
    descriptor = os.open(secrets.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
