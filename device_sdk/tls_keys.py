"""The TLS key of a device, its request for a certificate, and what a certificate must be to be kept.

ECDSA on P-256: gRPC's handshake fails with Ed25519 leaves.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from device_sdk.errors import CertificateRefused

if TYPE_CHECKING:
    from datetime import datetime

    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

_CLOCK_SKEW = timedelta(minutes=5)


def new_private_key() -> bytes:
    """A new P-256 key as PKCS#8 in PEM, for a vault to seal."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_request(private_key: bytes) -> bytes:
    """PKCS#10 in DER without names: the authority gives those."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(_loaded(private_key), SHA256()).public_bytes(Encoding.DER)


def check_certificate(certificate: bytes, authority: bytes, private_key: bytes, now: datetime) -> None:
    """Raise `CertificateRefused` unless `authority` issued `certificate` for this key and it is valid now."""
    leaf, issuer = _certificate(certificate), _certificate(authority)
    if _spki(leaf.public_key()) != _spki(_loaded(private_key).public_key()):
        raise CertificateRefused("the certificate is for another key than this device's; it was not kept")
    try:
        leaf.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        raise CertificateRefused("the certificate is not issued by the pinned authority; it was not kept") from None
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begins - _CLOCK_SKEW <= now < ends:
        raise CertificateRefused(
            f"the certificate is valid from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC, which this device's "
            "clock is outside of; set the clock or ask again; it was not kept"
        )


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when a certificate holds."""
    leaf = _certificate(certificate)
    return leaf.not_valid_before_utc, leaf.not_valid_after_utc


def names_in(certificate: bytes) -> frozenset[str]:
    """The URIs by which a certificate names its device."""
    try:
        names = _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(names.value.get_values_for_type(x509.UniformResourceIdentifier))


def _certificate(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError:
        raise CertificateRefused("these bytes are no certificate; nothing was kept") from None


def _loaded(private_key: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(private_key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("a device's TLS key is an elliptic-curve key")
    return key


def _spki(key: CertificatePublicKeyTypes | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
