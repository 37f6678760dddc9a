"""A device is who its keys say; certificates come and go, and a kill in between costs no invitation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from device_sdk.errors import AlreadyEnrolled, CertificateRefused, NotEnrolled
from device_sdk.identity import Identity, Standing, ledger_keys
from device_sdk.vault import Vault
from device_sdk.wire.messages import EnrolmentReply
from privacy.canonical import canonical, parse
from privacy.keys import check_signature
from server_kit.daemon.authority import Authority
from tests.device_sdk.conftest import SERVER

BEGINS = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DEVICE, OTHER_DEVICE = "00" * 16, "11" * 16


class Clock:
    def __init__(self):
        self.now = BEGINS + HOUR

    def __call__(self):
        return self.now.timestamp()


@pytest.fixture(scope="module")
def authority():
    return Authority.create(BEGINS)


def issued(authority, request, begins=BEGINS, device=DEVICE):
    return authority.issue_device(request, device, lifetime=timedelta(days=3), now=begins)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def identity(vault, clock):
    return Identity.of(vault, SERVER, clock)


def reply(issuer, request, /, **other):
    terms = {
        "device": DEVICE,
        "server": "covey-abc",
        "server_key": b"k" * 32,
        "gateway": "fl.example.com:8444",
        "certificate": issued(issuer, request),
        "authority": issuer.certificate,
    }
    return EnrolmentReply(**{**terms, **other})


def test_keys_are_made_once_and_found_again(vault, identity):
    again = Identity.of(vault, SERVER)
    assert again.certificate_request == identity.certificate_request
    assert again.signing_key.public_key == identity.signing_key.public_key
    assert again.standing is Standing.NEW


def test_each_server_gets_other_keys(vault, identity):
    other = Identity.of(vault, "other.example.com:8443")
    assert other.signing_key.public_key != identity.signing_key.public_key
    assert other.certificate_request != identity.certificate_request


def test_the_request_is_for_a_p256_key_and_names_nobody(identity):
    request = x509.load_der_x509_csr(identity.certificate_request)
    assert isinstance(request.public_key(), ec.EllipticCurvePublicKey)
    assert request.is_signature_valid
    assert not list(request.subject)
    assert not list(request.extensions)


def test_an_enrolled_device_has_credentials_that_fit_together(vault, identity, authority, clock):
    identity.enrol(reply(authority, identity.certificate_request))
    again = Identity.of(vault, SERVER, clock)
    assert again.standing is Standing.ENROLLED
    assert again.enrolled.gateway == "fl.example.com:8444"
    shown = again.credentials
    leaf = x509.load_der_x509_certificate(shown.certificate)
    assert leaf.public_key() == load_pem_private_key(shown.private_key, None).public_key()
    assert b"PRIVATE" not in repr(shown).encode()


def test_before_enrolment_there_is_nothing_to_show(identity):
    with pytest.raises(NotEnrolled, match=SERVER):
        _ = identity.credentials
    with pytest.raises(NotEnrolled):
        identity.renewal_request()


def test_the_same_reply_may_come_twice_and_another_servers_may_not(identity, authority):
    answer = reply(authority, identity.certificate_request)
    identity.enrol(answer)
    identity.enrol(answer)
    with pytest.raises(AlreadyEnrolled):
        identity.enrol(reply(authority, identity.certificate_request, server="covey-other"))
    assert identity.enrolled.server == "covey-abc"


def test_a_certificate_for_another_key_is_refused(identity, authority, vault):
    foreign = Identity.of(vault, "other.example.com:8443").certificate_request
    with pytest.raises(CertificateRefused, match="another key"):
        identity.enrol(reply(authority, foreign))
    assert identity.standing is Standing.NEW


def test_a_certificate_of_another_authority_is_refused(identity, authority):
    with pytest.raises(CertificateRefused, match="pinned authority"):
        identity.enrol(reply(authority, identity.certificate_request, authority=Authority.create().certificate))


def test_a_certificate_of_another_time_is_refused(identity, authority, clock):
    for now in (BEGINS - HOUR, BEGINS + timedelta(days=4)):
        clock.now = now
        with pytest.raises(CertificateRefused, match="clock"):
            identity.enrol(reply(authority, identity.certificate_request))


def test_garbage_is_no_certificate(identity, authority):
    for name in ("certificate", "authority"):
        with pytest.raises(CertificateRefused):
            identity.enrol(reply(authority, identity.certificate_request, **{name: b"garbage"}))


def test_renewal_is_due_after_two_thirds_of_the_certificates_life(identity, authority, clock):
    identity.enrol(reply(authority, identity.certificate_request))
    standings = {}
    for hours in (1, 47, 49, 71, 72):
        clock.now = BEGINS + hours * HOUR
        standings[hours] = identity.standing
    assert standings == {
        1: Standing.ENROLLED,
        47: Standing.ENROLLED,
        49: Standing.RENEWAL_DUE,
        71: Standing.RENEWAL_DUE,
        72: Standing.EXPIRED,
    }


def test_renewal_changes_the_key_and_keeps_the_name(vault, identity, authority, clock):
    identity.enrol(reply(authority, identity.certificate_request))
    before = identity.credentials
    clock.now = BEGINS + 50 * HOUR
    request = identity.renewal_request()
    assert identity.credentials == before, "the present certificate is used until the next one is there"
    # A kill here: the same key is asked for again.
    identity = Identity.of(vault, SERVER, clock)
    assert identity.renewal_request() == request
    identity.renew(issued(authority, request, clock.now))
    assert identity.standing is Standing.ENROLLED
    assert identity.credentials.private_key != before.private_key
    assert Identity.of(vault, SERVER, clock).credentials == identity.credentials
    assert identity.renewal_request() != request


def test_a_renewal_for_another_name_key_or_authority_changes_nothing(identity, authority, clock):
    identity.enrol(reply(authority, identity.certificate_request))
    before = identity.credentials
    with pytest.raises(CertificateRefused, match="no renewal"):
        identity.renew(issued(authority, identity.certificate_request))
    request = identity.renewal_request()
    for certificate in (
        issued(authority, request, device=OTHER_DEVICE),
        issued(authority, identity.certificate_request),
        issued(Authority.create(BEGINS), request),
    ):
        with pytest.raises(CertificateRefused):
            identity.renew(certificate)
    assert identity.credentials == before


def test_an_expired_device_can_be_enrolled_anew(identity, authority, clock):
    identity.enrol(reply(authority, identity.certificate_request))
    clock.now = BEGINS + timedelta(days=10)
    certificate = issued(authority, identity.certificate_request, clock.now)
    identity.enrol(reply(authority, identity.certificate_request, certificate=certificate, server="covey-new"))
    assert identity.standing is Standing.ENROLLED


def test_leaving_takes_the_identity_and_leaves_the_ledgers_keys(vault, identity, state, key_store):
    keys, signing = ledger_keys(vault), identity.signing_key.public_key
    vault.shred(SERVER)
    vault.close()
    with Vault.open(state, key_store) as again:
        assert ledger_keys(again).to_bytes() == keys.to_bytes()
        assert Identity.of(again, SERVER).signing_key.public_key != signing


def test_no_key_is_shared(vault, identity):
    ledger = ledger_keys(vault)
    assert ledger.public_key != identity.signing_key.public_key
    check_signature(identity.signing_key.public_key, b"statement", identity.signing_key.sign(b"statement"))


def test_each_server_is_shown_a_ledger_key_of_its_own(vault, identity, state, key_store):
    other = Identity.of(vault, "other.example.com:8443")
    own = ledger_keys(vault).public_key
    assert len({identity.ledger_key.public_key, other.ledger_key.public_key, own}) == 3
    shown = identity.ledger_key.public_key
    vault.shred(SERVER)  # and a device that comes back is known by its receipts
    assert Identity.of(vault, SERVER).ledger_key.public_key == shown


def test_a_device_that_enrolled_before_goes_on_showing_the_ledgers_own_key_until_it_has_left(
    vault, identity, authority, clock
):
    identity.enrol(reply(authority, identity.certificate_request))
    table = vault.table(SERVER, "identity")
    before = parse(table.get("current"))
    assert before.pop("shown") == "excerpt"
    table.put("current", canonical(before))
    again = Identity.of(vault, SERVER, clock)
    assert (again.is_excerpt, again.ledger_key.public_key) == (False, ledger_keys(vault).public_key)
    again.renewal_request()  # what is written anew says the same
    assert not Identity.of(vault, SERVER, clock).is_excerpt
    vault.shred(SERVER)
    assert Identity.of(vault, SERVER, clock).is_excerpt


def test_secrets_stand_in_no_repr(identity):
    shown = repr(identity) + repr(identity._secrets) + repr(identity.signing_key)
    assert "PRIVATE" not in shown
    assert identity.signing_key.to_bytes().hex() not in shown
    assert repr(identity.signing_key.to_bytes()) not in shown
