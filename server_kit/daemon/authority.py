"""The federation's own certificate authority: it says who is a device and who is the server, and nobody else does.

Leaves are ECDSA P-256, because gRPC refuses Ed25519 ones, and short-lived, because nothing asks for revocation
lists. What a request asks to be called is ignored: a device's name follows from its signing key and stands in a
URI. A device's certificate cannot serve, and the server's cannot attend.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.signing import server_name
from device_sdk.wire.trust import ISSUER_EXTENSION, device_uri

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId

AUTHORITY_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=90)
DEVICE_LIFETIME = timedelta(days=3)
# A device whose clock is a little behind must not find its new certificate "not yet valid".
_CLOCK_SKEW = timedelta(minutes=10)


@dataclass(frozen=True)
class ServerCertificate:
    """What a gateway or an enrolment desk shows, as PEM: its certificate and the key of it."""

    certificate: bytes
    private_key: bytes = field(repr=False)


class Authority:
    """Signs certificates for one federation. Its key should be readable by nobody but the server's user."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        if certificate.public_key() != key.public_key():
            raise ValueError("this key is not that of the authority's certificate; nothing was opened")
        self._certificate, self._key = certificate, key
        self.certificate = certificate.public_bytes(serialization.Encoding.DER)
        """In DER; what devices pin."""
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)

    @classmethod
    def create(cls, now: datetime | None = None) -> Authority:
        """A new authority: everything that an older one has signed is foreign to it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Covey federation authority")])
        usage = _key_usage(key_cert_sign=True)
        builder = _builder(name, name, key.public_key(), now or datetime.now(UTC), AUTHORITY_LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def from_pem(cls, certificate: bytes, private_key: bytes) -> Authority:
        """The authority that `certificate_pem` and `private_key_pem` gave."""
        key = serialization.load_pem_private_key(private_key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("an authority's key is ECDSA P-256; nothing was opened")
        return cls(x509.load_pem_x509_certificate(certificate), key)

    def private_key_pem(self) -> bytes:
        """The secret, for a file of mode 0600 or a vault."""
        return _private_pem(self._key)

    @property
    def fingerprint(self) -> bytes:
        """What invitations carry."""
        return hashlib.sha256(self.certificate).digest()

    @property
    def server(self) -> str:
        """The server's name in ledgers and receipts."""
        return server_name(self.certificate)

    def issue_device(
        self,
        certificate_request: bytes,
        device: DeviceId,
        lifetime: timedelta = DEVICE_LIFETIME,
        now: datetime | None = None,
    ) -> bytes:
        """A certificate (DER) that says: the holder of the requested key is `device`. Asked-for names are ignored."""
        key = _requested_key(certificate_request)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
        builder = self._leaf(subject, key, ExtendedKeyUsageOID.CLIENT_AUTH, now or datetime.now(UTC), lifetime)
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(device_uri(device))])
        signed = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.DER)

    def issue_server(
        self, hosts: Sequence[str], lifetime: timedelta = SERVER_LIFETIME, now: datetime | None = None
    ) -> ServerCertificate:
        """A new key and certificate for a server that devices reach under these names and addresses.

        The authority's own certificate is inside (`ISSUER_EXTENSION`): a device that enrols knows its fingerprint
        only, and Python shows a peer's own certificate, not the rest of its chain.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        now = now or datetime.now(UTC)
        builder = self._leaf(subject, key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, now, lifetime)
        names = x509.SubjectAlternativeName([_host_name(host) for host in hosts])
        issuer = x509.UnrecognizedExtension(ISSUER_EXTENSION, self.certificate)
        builder = builder.add_extension(names, critical=False).add_extension(issuer, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return ServerCertificate(certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))

    def _leaf(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        purpose: ObjectIdentifier,
        now: datetime,
        lifetime: timedelta,
    ) -> x509.CertificateBuilder:
        ours = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            _builder(subject, self._certificate.subject, key, now, lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ours), critical=False)
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _requested_key(certificate_request: bytes) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_der_x509_csr(certificate_request)
        key = request.public_key()
        possessed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_request("cannot be read") from error
    if not possessed:
        raise _bad_request("is not signed by its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _bad_request("is for a key other than ECDSA P-256")
    return key


def _bad_request(fault: str) -> Refused:
    return Refused(ErrorCode.BAD_REQUEST_FOR_CERTIFICATE, f"the certificate request {fault}; no certificate was issued")


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
