"""Who comes in, who is put out, and that it takes effect at the next call; each refusal says which it is."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from device_sdk.wire import messages as m
from device_sdk.wire.channel import Credentials
from device_sdk.wire.codec import encode
from device_sdk.wire.errors import Refused, UntrustedServer
from device_sdk.wire.services import ENROLMENT, FEDERATION
from server_kit.daemon.authority import Authority, ServerCertificate
from server_kit.daemon.register import EnrolledDevice
from tests.device_sdk.wire import examples
from tests.device_sdk.wire.devices import TestDevice, TlsKey
from tests.server_kit.daemon.hostile_device import HostileDevice, http2_call, spoken_tls
from tests.server_kit.daemon.memory_server import MemoryServer

pytestmark = pytest.mark.integration


def code_of(call) -> m.ErrorCode:
    with pytest.raises(Refused) as refusal:
        call()
    return refusal.value.code


def test_a_revoked_device_is_refused_at_its_next_call_and_the_operator_is_told(server, device, caplog):
    with device.channel() as channel:
        channel.upload(device.update(b"before"), b"before")
        server.register.revoke(device.id)
        with caplog.at_level(logging.WARNING):
            assert code_of(lambda: channel.upload(device.update(b"after"), b"after")) is m.ErrorCode.REVOKED
            assert code_of(channel.attend) is m.ErrorCode.REVOKED
            assert code_of(lambda: channel.renew(TlsKey().request())) is m.ErrorCode.REVOKED
    assert "this device was revoked by the operator" in caplog.text
    assert {record.code for record in caplog.records} == {"revoked"}
    assert {record.device for record in caplog.records} == {device.id}
    assert len(server.desk.accepted) == 1


def test_revocation_closes_open_streams_with_the_reason(server, device):
    bystander = TestDevice().known_to(server)
    with device.channel() as channel, bystander.channel() as other:
        session, untouched = channel.attend(), other.attend()
        server.register.revoke(device.id)
        server.gateway.revoke(device.id)
        assert code_of(lambda: session.receive(10)) is m.ErrorCode.REVOKED
        server.gateway.push(bystander.id, m.ComeBack(3.0))
        assert untouched.receive(10) == m.ComeBack(3.0)


def test_revocation_by_another_process_closes_open_streams_too(server, device):
    with device.channel() as channel:
        session = channel.attend()
        server.register.revoke(device.id)  # and nobody tells the gateway
        assert code_of(lambda: session.receive(10)) is m.ErrorCode.REVOKED


def test_a_device_that_nobody_enrolled_is_refused(server):
    stranger = TestDevice()
    stranger.credentials, stranger.gateway = stranger.certified_by(server.authority), str(server.address)
    with stranger.channel() as channel:
        assert code_of(channel.attend) is m.ErrorCode.NOT_ENROLLED


def test_an_expired_certificate_is_refused_and_says_so(server, caplog):
    expired = TestDevice().known_to(server, now=datetime.now(UTC) - timedelta(days=2), lifetime=timedelta(days=1))
    with expired.channel() as channel, pytest.raises(Refused, match="certificate expired on") as refusal:
        channel.attend()
    assert refusal.value.code is m.ErrorCode.CERTIFICATE_EXPIRED
    # A device that does not look at its own certificate gets no further than the handshake.
    assert spoken_tls(server.address, expired.credentials, server.authority.certificate) == b""


def test_a_stream_does_not_outlive_its_certificate(server):
    device = TestDevice().known_to(server, now=datetime.now(UTC) - timedelta(hours=1), lifetime=timedelta(seconds=3602))
    with device.channel() as channel:
        session = channel.attend()
        assert code_of(lambda: session.receive(10)) is m.ErrorCode.CERTIFICATE_EXPIRED


def test_a_certificate_of_a_foreign_authority_is_refused_by_both_ends(server, device):
    foreign = Authority.create()
    shown = device.certified_by(foreign)
    assert spoken_tls(server.address, shown, server.authority.certificate) == b""
    # One that trusts this server and shows a foreign certificate is told so.
    device.credentials = Credentials(shown.certificate, shown.private_key, server.authority.certificate)
    with device.channel() as channel, pytest.raises(Refused, match="another authority issued it"):
        channel.attend()
    # One that belongs to the foreign authority does not believe this server.
    device.credentials = shown
    with device.channel() as channel, pytest.raises(UntrustedServer, match="cannot prove who it is"):
        channel.attend()


def test_nobody_comes_in_without_a_certificate(server, device):
    assert spoken_tls(server.address, None, server.authority.certificate) == b""
    assert spoken_tls(server.address, device.credentials, server.authority.certificate) != b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_caller_over_tls_1_2_is_refused_and_the_operator_is_told(server, device, caplog, version):
    call = http2_call(f"/{FEDERATION}/Renew", encode(m.RenewalRequest(device.tls.request())))
    with caplog.at_level(logging.INFO):
        spoken_tls(server.address, device.credentials, server.authority.certificate, call, maximum_version=version)
    refused = "this server speaks TLS 1.3 only and the caller TLSv1.2" in caplog.text
    assert refused == (version is ssl.TLSVersion.TLSv1_2)
    assert ("renewed a certificate" in caplog.text) == (version is ssl.TLSVersion.TLSv1_3)


def test_the_server_cannot_be_played_with_a_device_certificate(server, device, tmp_path):
    pem = ssl.DER_cert_to_PEM_cert(device.credentials.certificate).encode()
    impostor = MemoryServer(
        tmp_path / "other",
        authority=server.authority,
        certificate=ServerCertificate(pem, device.credentials.private_key),
    )
    try:
        victim = TestDevice().known_to(impostor)
        with victim.channel() as channel, pytest.raises(UntrustedServer):
            channel.attend()
    finally:
        impostor.close()


def test_the_server_certificate_cannot_attend(server):
    pair = server.certificate
    shown = Credentials(
        ssl.PEM_cert_to_DER_cert(pair.certificate.decode()), pair.private_key, server.authority.certificate
    )
    assert spoken_tls(server.address, shown, server.authority.certificate) == b""


def test_enrolment_is_not_offered_on_the_gateway_nor_anything_else_at_enrolment(server, device):
    with HostileDevice(server.address, device.credentials) as hostile:
        with pytest.raises(grpc.RpcError) as error:
            hostile.call(ENROLMENT, "Enrol")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with HostileDevice(server.enrolment_address, device.credentials) as hostile:
        with pytest.raises(grpc.RpcError) as error:
            hostile.call(FEDERATION, "Renew")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_for_a_device_that_is_not_there_stays_with_the_caller(server, device):
    assert not server.gateway.push(device.id, examples.TASK)
    with device.channel() as channel:
        session = channel.attend()
        assert server.gateway.connected() == {device.id}
        session.close()
        server.desk.wait_for(lambda desk: desk.departures)
    assert server.gateway.connected() == set()


@pytest.mark.parametrize(
    ("version", "heard"),
    [((1, 0), []), ((1, 1), [examples.QUESTION]), ((1, 2), [examples.QUESTION, examples.VOTES_QUESTION])],
)
def test_a_device_is_asked_only_what_its_version_understands(server, device, monkeypatch, version, heard):
    monkeypatch.setattr("device_sdk.wire.session.Hello", lambda: m.Hello(m.ProtocolVersion(*version)))
    with device.channel() as channel, channel.attend() as session:
        asked = [q for q in (examples.QUESTION, examples.VOTES_QUESTION) if server.gateway.push(device.id, q)]
        assert server.gateway.push(device.id, m.ComeBack(1.0))
        assert [session.receive(10) for _ in range(len(heard) + 1)] == [*heard, m.ComeBack(1.0)]
    assert asked == heard


def test_what_is_pushed_before_the_welcome_comes_after_it(server, device):
    entered, proceed = threading.Event(), threading.Event()
    welcome = server.desk.welcome

    def slow_welcome(who):
        entered.set()
        assert proceed.wait(10)
        return welcome(who)

    server.desk.welcome = slow_welcome
    sessions = []
    with device.channel() as channel:
        thread = threading.Thread(target=lambda: sessions.append(channel.attend()))
        thread.start()
        assert entered.wait(10)
        assert server.gateway.push(device.id, examples.TASK)
        proceed.set()
        thread.join()
        assert sessions[0].welcome.cohorts == server.desk.cohorts
        assert sessions[0].receive(10) == examples.TASK


def test_a_failing_desk_costs_its_caller_a_retry_and_tells_it_nothing(server, device, caplog):
    def failing(who, sha256):
        raise RuntimeError("the database password is 1234")

    server.desk.blob = failing
    with HostileDevice(server.address, device.credentials) as hostile:
        request = encode(m.DownloadRequest(b"\0" * 32))
        with pytest.raises(grpc.RpcError) as error:
            list(hostile.download(request))
    assert "1234" not in repr(error.value)
    assert "1234" not in str(error.value.trailing_metadata())
    assert "1234" in caplog.text


def test_the_register_is_asked_on_every_call(server, device):
    asked = []
    find = server.register.find

    def noted(who):
        asked.append(who)
        return find(who)

    server.register.find = noted
    with device.channel() as channel:
        for _ in range(3):
            before = len(asked)
            channel.renew(device.tls.request())
            assert len(asked) > before


def test_a_stream_ends_with_a_goodbye_when_the_gateway_closes(server, device):
    with device.channel() as channel:
        session = channel.attend()
        server.gateway.close(grace_seconds=2)
        assert session.receive(10) == m.Goodbye(m.GoodbyeReason.CLOSING)


def test_an_enrolled_device_without_its_key_cannot_be_played(server, device):
    other = TestDevice()
    server.register.add(EnrolledDevice(other.id, other.signing.public_key, other.ledger.public_key))
    header = other.update(b"bytes")
    with device.channel() as channel:
        assert code_of(lambda: channel.upload(header, b"bytes")) is m.ErrorCode.WRONG_SIGNATURE
    assert server.desk.accepted == []


def test_the_server_certificate_is_replaced_while_sessions_go_on(server, device):
    with device.channel() as channel, channel.attend() as session:
        expired = server.authority.issue_server(["127.0.0.1"], now=datetime.now(UTC) - timedelta(days=100))
        server.gateway.show(expired)
        with device.channel() as newcomer, pytest.raises(UntrustedServer, match="expired"):
            newcomer.attend()
        server.gateway.show(server.authority.issue_server(["127.0.0.1"]))
        with device.channel() as newcomer:
            newcomer.renew(device.tls.request())
        server.gateway.push(device.id, m.ComeBack(2.0))
        assert session.receive(10) == m.ComeBack(2.0)


def test_a_refusal_with_a_line_break_still_arrives(server, device):
    def refusing(who):
        raise Refused(m.ErrorCode.NOT_ASKED, "first line\nsecond line")

    server.desk.welcome = refusing
    with device.channel() as channel, pytest.raises(Refused, match="first line second line"):
        channel.attend()


def test_closing_tells_the_desk_of_everyone_who_was_there(server):
    devices = [TestDevice().known_to(server) for _ in range(5)]
    channels = [device.channel() for device in devices]
    for channel in channels:
        channel.attend()
    server.gateway.close(grace_seconds=0)
    assert {who for who, _ in server.desk.departures} == {device.id for device in devices}
    for channel in channels:
        channel.close()


@pytest.mark.stress
@pytest.mark.parametrize("port", ["address", "enrolment_address"])
def test_a_connection_that_never_says_a_word_is_cut(server, port):
    address = getattr(server, port)
    with socket.create_connection((address.host, address.port), 30) as loris:
        assert loris.recv(10) == b""
