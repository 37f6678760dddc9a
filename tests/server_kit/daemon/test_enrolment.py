"""Strangers come in by invitation only, and leave with a certificate or the reason why not."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from device_sdk.wire import enrolling as enrolling_module
from device_sdk.wire import messages as m
from device_sdk.wire.backoff import Backoff
from device_sdk.wire.channel import enrol
from device_sdk.wire.errors import ConnectionLost, Refused, ServerBusy, SignatureInvalid, UntrustedServer
from device_sdk.wire.signing import enrolment_request, server_name
from privacy.keys import SigningKey
from server_kit.daemon.authority import Authority
from server_kit.daemon.enrolment import EnrolmentDesk
from tests.device_sdk.wire.devices import TestDevice, TlsKey

pytestmark = pytest.mark.integration


def enrolling(invitation, device=None):
    device = device or TestDevice()
    return enrol(invitation, device.tls.request(), device.signing, device.ledger)


def test_enrolment_tells_the_device_who_it_and_the_server_are(server):
    device = TestDevice()
    reply = enrolling(server.invitation(), device)
    assert reply.device == device.id
    assert reply.server == server_name(server.authority.certificate)
    assert reply.server_key == server.key.public_key
    assert reply.gateway == str(server.address)
    assert server.register.find(device.id).ledger_key == device.ledger.public_key


def test_a_lost_reply_can_be_asked_for_again(server):
    invitation, device = server.invitation(), TestDevice()
    enrolling(invitation, device)
    assert enrolling(invitation, device).device == device.id


def test_more_devices_than_are_served_at_once_all_enrol_in_the_end(server, monkeypatch):
    invitations, served, waited = [server.invitation() for _ in range(64)], EnrolmentDesk.enrol, []

    def slowly(desk, request):
        time.sleep(0.05)
        return served(desk, request)

    def pause(backoff):
        waited.append(backoff)
        return 0.1

    monkeypatch.setattr(EnrolmentDesk, "enrol", slowly)
    monkeypatch.setattr(Backoff, "failed", pause)
    with ThreadPoolExecutor(len(invitations)) as pool:
        replies = list(pool.map(enrolling, invitations))
    assert len({reply.device for reply in replies}) == len(invitations)
    assert waited, "nobody had to wait, so this shows nothing"


def test_a_server_that_stays_busy_is_said_to_be(server, monkeypatch):
    def busy(*_):
        raise ServerBusy("the server is busy with others")

    monkeypatch.setattr(enrolling_module, "_asked", busy)
    device = TestDevice()
    with pytest.raises(ServerBusy, match="busy"):
        enrol(server.invitation(), device.tls.request(), device.signing, device.ledger, timeout_seconds=0.5)


@pytest.mark.parametrize(("times", "enrols"), [(3, True), (4, False)])
def test_a_connection_that_breaks_is_tried_again_a_few_times(server, monkeypatch, times, enrols):
    asked, broken = enrolling_module._asked, iter(range(times))

    def breaking(*arguments):
        if next(broken, None) is not None:
            raise ConnectionLost("the connection to the server broke")
        return asked(*arguments)

    monkeypatch.setattr(enrolling_module, "_asked", breaking)
    device = TestDevice()
    if enrols:
        assert enrolling(server.invitation(), device).device == device.id
    else:
        with pytest.raises(ConnectionLost):
            enrolling(server.invitation(), device)


def test_a_reused_invitation_is_refused_and_the_operator_is_told(server, caplog):
    invitation = server.invitation()
    enrolling(invitation)
    with caplog.at_level(logging.WARNING), pytest.raises(Refused, match="used by another device") as refusal:
        enrolling(invitation)
    assert refusal.value.code is m.ErrorCode.INVITATION_USED
    assert "used by another device" in caplog.text


def test_a_faulty_request_does_not_use_up_the_invitation(server):
    invitation, device = server.invitation(), TestDevice()
    faulty = enrolment_request(invitation.secret, TlsKey().request()[:-1], device.signing, device.ledger)
    with pytest.raises(Refused) as refusal:
        server.enrolment._desk.enrol(faulty)
    assert refusal.value.code is m.ErrorCode.BAD_REQUEST_FOR_CERTIFICATE
    enrolling(invitation, device)


def test_keys_must_be_proved(server):
    device, stolen = TestDevice(), SigningKey.generate()
    request = enrolment_request(server.invitation().secret, device.tls.request(), device.signing, device.ledger)
    with pytest.raises(SignatureInvalid):
        server.enrolment._desk.enrol(replace(request, signing_key=stolen.public_key))


def test_a_revoked_device_cannot_enrol_again(server):
    device = TestDevice().enrol_at(server)
    server.register.revoke(device.id)
    with pytest.raises(Refused) as refusal:
        enrolling(server.invitation(), device)
    assert refusal.value.code is m.ErrorCode.REVOKED


def test_a_device_that_lost_its_ledger_is_a_new_device(server):
    device = TestDevice().enrol_at(server)
    with pytest.raises(Refused) as refusal:
        enrolling(server.invitation(), TestDevice(signing=device.signing))
    assert refusal.value.code is m.ErrorCode.OTHER_LEDGER


def test_a_device_believes_no_server_but_the_invitations(server):
    foreign = replace(server.invitation(), fingerprint=Authority.create().fingerprint)
    with pytest.raises(UntrustedServer, match="another authority"):
        enrolling(foreign)
    assert all(stored.used_by is None for stored in server.invitation_store.stored.values())


def test_two_servers_may_not_share_one_port(server):
    other = server.enrolment.__class__(server.enrolment._desk, server.loop)
    with pytest.raises(RuntimeError):
        other.start(str(server.enrolment_address), server.certificate)
    other.close()
