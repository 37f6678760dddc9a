"""Certificates say what the authority decided: who, for how long, for what; never what was asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from device_sdk.wire.errors import Refused, UntrustedServer
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.trust import ISSUER_EXTENSION, check_issued, device_named_in
from server_kit.daemon.authority import Authority
from tests.device_sdk.wire.devices import TlsKey

DEVICE = "00112233445566778899aabbccddeeff"
AUTHORITY = Authority.create()


def request_of(key, algorithm) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def issued(**terms) -> x509.Certificate:
    return x509.load_der_x509_certificate(AUTHORITY.issue_device(TlsKey().request(), DEVICE, **terms))


def purposes(certificate) -> list:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_device_certificate_names_the_device_and_nothing_it_asked_for():
    certificate = issued()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == [f"urn:covey:device:{DEVICE}"]
    assert device_named_in(certificate) == DEVICE
    assert "ignored" not in certificate.subject.rfc4514_string()


def test_a_device_certificate_is_short_and_for_clients_only():
    certificate = issued(lifetime=timedelta(hours=24))
    assert certificate.not_valid_after_utc - datetime.now(UTC) <= timedelta(hours=24)
    assert purposes(certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_server_certificate_is_for_servers_and_carries_its_authority():
    certificate = x509.load_pem_x509_certificate(AUTHORITY.issue_server(["fl.example.com", "10.0.0.1"]).certificate)
    assert purposes(certificate) == [ExtendedKeyUsageOID.SERVER_AUTH]
    inside = certificate.extensions.get_extension_for_oid(ISSUER_EXTENSION).value
    assert inside == x509.UnrecognizedExtension(ISSUER_EXTENSION, AUTHORITY.certificate)
    assert device_named_in(certificate) is None


def test_an_authority_cannot_make_further_authorities():
    certificate = x509.load_der_x509_certificate(AUTHORITY.certificate)
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_an_authority_comes_back_from_its_files():
    again = Authority.from_pem(AUTHORITY.certificate_pem, AUTHORITY.private_key_pem())
    assert (again.fingerprint, again.server) == (AUTHORITY.fingerprint, AUTHORITY.server)
    with pytest.raises(ValueError, match="not that of"):
        Authority.from_pem(AUTHORITY.certificate_pem, Authority.create().private_key_pem())


def forged_request() -> bytes:
    """Signed by another key than the one it asks a certificate for."""
    honest = bytearray(TlsKey().request())
    honest[-1] ^= 1
    return bytes(honest)


@pytest.mark.parametrize(
    "make",
    [
        lambda: request_of(ed25519.Ed25519PrivateKey.generate(), None),
        lambda: request_of(rsa.generate_private_key(65537, 2048), hashes.SHA256()),
        lambda: request_of(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
        forged_request,
        lambda: b"no request at all",
        lambda: b"",
    ],
    ids=["Ed25519", "RSA", "P-384", "not its key", "garbage", "empty"],
)
def test_a_request_for_anything_but_its_own_p256_key_is_refused(make):
    with pytest.raises(Refused) as refusal:
        AUTHORITY.issue_device(make(), DEVICE)
    assert refusal.value.code is ErrorCode.BAD_REQUEST_FOR_CERTIFICATE


def test_a_device_keeps_no_certificate_of_another_authority_key_or_device():
    key = TlsKey()
    spki = x509.load_der_x509_csr(key.request()).public_key()
    public = spki.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    certificate = AUTHORITY.issue_device(key.request(), DEVICE)
    check_issued(certificate, AUTHORITY.certificate, public, DEVICE)
    for wrong in (
        (Authority.create().issue_device(key.request(), DEVICE), AUTHORITY.certificate, public, DEVICE),
        (AUTHORITY.issue_device(TlsKey().request(), DEVICE), AUTHORITY.certificate, public, DEVICE),
        (AUTHORITY.issue_device(key.request(), "0" * 32), AUTHORITY.certificate, public, DEVICE),
        (b"garbage", AUTHORITY.certificate, public, DEVICE),
    ):
        with pytest.raises(UntrustedServer):
            check_issued(*wrong)


def test_its_key_stands_in_no_repr():
    assert "PRIVATE" not in repr(AUTHORITY.issue_server(["localhost"]))
