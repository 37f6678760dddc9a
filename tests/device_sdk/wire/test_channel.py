"""A device and a server over real mutual TLS on loopback: enrol, attend, download, upload, renew, leave."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from device_sdk.wire import messages as m
from device_sdk.wire.cancelling import Stop
from device_sdk.wire.channel import Credentials
from device_sdk.wire.codec import encode_upload
from device_sdk.wire.errors import Cancelled, ConnectionLost, DeadlinePassed, Refused
from device_sdk.wire.tensors import blob_of, chunks
from device_sdk.wire.trust import device_named_in
from privacy.receipts import Countersignature, verify_countersignature
from server_kit.daemon.gateway import GatewaySettings
from server_kit.daemon.spool import Intake
from tests.device_sdk.wire import examples
from tests.device_sdk.wire.devices import TestDevice, TlsKey
from tests.device_sdk.wire.relay import Relay
from tests.server_kit.daemon.hostile_device import HostileDevice, refusal_of
from tests.server_kit.daemon.memory_server import MemoryServer

pytestmark = pytest.mark.integration


def test_a_device_enrols_attends_and_leaves(server):
    device = TestDevice().enrol_at(server)
    with device.channel() as channel:
        with channel.attend() as session:
            assert session.welcome == m.Welcome(m.Cohorts(("0",)))
            session.check_in(m.CheckIn())
            server.desk.wait_for(lambda desk: desk.check_ins == [(device.id, m.CheckIn())])
            assert server.gateway.push(device.id, examples.TASK)
            assert session.receive(10) == examples.TASK
            session.decline(m.Decline("t-41", m.DeclineReason.NOT_NOW))
            server.desk.wait_for(lambda desk: desk.declines)
            session.close(m.GoodbyeReason.LEAVING)
        server.desk.wait_for(lambda desk: desk.departures == [(device.id, True)])


def test_a_task_is_pushed_without_any_wait_of_its_own(server, device):
    server.desk.answer = lambda device, check_in: examples.TASK
    with device.channel() as channel, channel.attend() as session:
        began = time.monotonic()
        for _ in range(20):
            session.check_in(m.CheckIn())
            assert session.receive(10) == examples.TASK
        assert time.monotonic() - began < 5  # a single poll a second would take twenty


@pytest.mark.parametrize("size", [1, 5000, m.CHUNK_BYTES, m.CHUNK_BYTES + 1, 5 * m.CHUNK_BYTES + 17])
def test_bytes_arrive_as_they_were_in_both_directions(server, device, size):
    payload = os.urandom(size)
    server.desk.blobs[blob_of(payload).sha256] = payload
    with device.channel() as channel:
        assert channel.download(blob_of(payload)) == payload
        accepted = channel.upload(device.update(payload), payload)
    assert server.desk.accepted[0][2] == payload
    verify_countersignature(
        Countersignature.from_json(accepted.countersignature), server.authority.server, server.key.public_key
    )


def test_an_update_sent_twice_is_counted_once_and_answered_alike(server, device):
    header = device.update(b"some bytes")
    with device.channel() as channel:
        first = channel.upload(header, b"some bytes")
        second = channel.upload(header, b"some bytes")
    assert not first.repeated
    assert second.repeated
    assert first.countersignature == second.countersignature
    assert len(server.desk.accepted) == 1


def test_a_summary_is_sent_like_an_update(server, device):
    header = device.summary(b"histogram")
    with device.channel() as channel:
        channel.upload(header, b"histogram")
    assert server.desk.accepted == [(device.id, header, b"histogram")]


def test_the_welcome_says_how_far_the_server_has_seen_the_ledger(server, device):
    with device.channel() as channel:
        accepted = channel.upload(device.update(b"bytes"), b"bytes")
        with channel.attend() as session:
            assert session.welcome.countersignature == accepted.countersignature


def test_a_certificate_is_renewed_in_place_while_a_session_goes_on(server, device):
    with device.channel() as channel, channel.attend() as session:
        fresh = TlsKey()
        reply = channel.renew(fresh.request())
        channel.use(Credentials(reply.certificate, fresh.pem, server.authority.certificate))
        assert session.outdated
        assert server.gateway.push(device.id, m.ComeBack(5.0))
        assert session.receive(10) == m.ComeBack(5.0)
        with channel.attend() as again:
            assert not again.outdated
            again.check_in(m.CheckIn())
            server.desk.wait_for(lambda desk: desk.check_ins)
    assert device_named_in(x509.load_der_x509_certificate(reply.certificate)) == device.id


def test_receive_can_be_given_a_deadline_and_the_session_goes_on(server, device):
    with device.channel() as channel, channel.attend() as session:
        with pytest.raises(DeadlinePassed):
            session.receive(0.05)
        server.gateway.push(device.id, m.ComeBack(1.0))
        assert session.receive(10) == m.ComeBack(1.0)


def test_stop_ends_a_waiting_receive_at_once(server, device):
    stop = Stop()
    with device.channel(stop=stop) as channel, channel.attend() as session:
        threading.Timer(0.2, stop.set).start()
        with pytest.raises(Cancelled):
            session.receive(60)
        with pytest.raises(Cancelled):
            channel.attend()
        with pytest.raises(Cancelled):
            channel.download(m.Blob(b"\0" * 32, 5))


def test_stop_ends_the_back_off_of_a_device_without_a_server(server, device):
    server.stop_gateway()
    stop = Stop()
    with device.channel(stop=stop) as channel:
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(Cancelled):
            channel.attend()


def test_attend_gives_up_at_its_deadline(server, device):
    server.stop_gateway()
    with device.channel() as channel, pytest.raises(DeadlinePassed):
        channel.attend(timeout_seconds=0.3)


def test_a_device_comes_back_after_its_server_does(server, device):
    with device.channel() as channel:
        session = channel.attend()
        server.restart_gateway()
        with suppress(ConnectionLost):  # there may have been time for a goodbye
            session.receive(10)
        with pytest.raises(ConnectionLost):
            session.receive(10)
        with channel.attend(timeout_seconds=20) as again:
            again.check_in(m.CheckIn())
            server.desk.wait_for(lambda desk: desk.check_ins)


def test_a_closed_channel_is_closed(server, device):
    channel = device.channel()
    session = channel.attend()
    channel.close()
    with pytest.raises((ConnectionLost, Cancelled)):
        session.receive(10)
    with pytest.raises(Cancelled, match="closed"):
        channel.attend()


def test_a_model_that_is_not_there_is_refused_with_a_reason(server, device):
    with device.channel() as channel, pytest.raises(Refused, match="no such model") as refusal:
        channel.download(m.Blob(b"\7" * 32, 100))
    assert refusal.value.code is m.ErrorCode.NOT_FOUND


def test_a_newer_stream_of_a_device_replaces_the_older_and_nobody_has_gone(server, device):
    with device.channel() as first, device.channel() as second:
        older = first.attend()
        with second.attend() as newer:
            assert older.receive(10) == m.Goodbye(m.GoodbyeReason.REPLACED)
            server.gateway.push(device.id, examples.TASK)
            assert newer.receive(10) == examples.TASK
            assert server.desk.departures == []
    server.desk.wait_for(lambda desk: desk.departures == [(device.id, False)])
    assert server.desk.story == ["welcome", "welcome", "gone"]


def test_an_upload_goes_on_after_the_server_was_killed_with_what_had_arrived(server, device):
    payload = os.urandom(5 * m.CHUNK_BYTES)
    header = device.update(payload)
    pieces = [encode_upload(chunk) for chunk in itertools.islice(chunks(payload), 2)]
    with HostileDevice(server.address, device.credentials) as hostile:
        assert refusal_of(hostile.upload([encode_upload(header), *pieces])) is m.ErrorCode.OUT_OF_ORDER
    server.restart_gateway()
    taken = []
    received = Intake.add

    def noted(intake, chunk):
        taken.append(chunk.offset // m.CHUNK_BYTES)
        received(intake, chunk)

    with pytest.MonkeyPatch.context() as patch, device.channel() as channel:
        patch.setattr(Intake, "add", noted)
        channel.upload(header, payload)
    assert taken == [2, 3, 4]
    assert server.desk.accepted[0][2] == payload


def test_a_certificate_is_renewed_while_an_upload_is_under_way(server, device):
    entered, proceed = threading.Event(), threading.Event()
    accept = server.desk.accept

    def slow(*arguments):
        entered.set()
        assert proceed.wait(20)
        return accept(*arguments)

    server.desk.accept = slow
    outcome = []
    with device.channel() as channel:
        thread = threading.Thread(target=lambda: outcome.append(channel.upload(device.update(b"bytes"), b"bytes")))
        thread.start()
        assert entered.wait(20)
        fresh = TlsKey()
        reply = channel.renew(fresh.request())
        channel.use(Credentials(reply.certificate, fresh.pem, server.authority.certificate))
        channel.renew(fresh.request())  # a call with the new certificate
        proceed.set()
        thread.join()
    assert not outcome[0].repeated


def test_a_session_moves_to_the_new_certificate_before_the_old_one_ends(tmp_path):
    settings = GatewaySettings(sweep_seconds=0.1)
    server = MemoryServer(tmp_path / "spool", settings)
    try:
        soon = datetime.now(UTC) - timedelta(hours=1)
        device = TestDevice().known_to(server, now=soon, lifetime=timedelta(seconds=3602))
        with device.channel() as channel:
            session = channel.attend()
            reply = channel.renew(device.tls.request())
            channel.use(Credentials(reply.certificate, device.tls.pem, server.authority.certificate))
            with pytest.raises(ConnectionLost, match="outlived"):
                session.receive(20)
            with channel.attend(timeout_seconds=20) as again:
                again.check_in(m.CheckIn())
                server.desk.wait_for(lambda desk: desk.check_ins)
    finally:
        server.close()


def test_what_was_said_before_closing_has_been_heard(server, device):
    for number in range(1, 11):
        with device.channel() as channel, channel.attend() as session:
            session.check_in(m.CheckIn())
            session.decline(m.Decline(f"t-{number}", m.DeclineReason.NOT_NOW))
            session.close(m.GoodbyeReason.LEAVING)
        server.desk.wait_for(lambda desk, number=number: len(desk.departures) == number)
        assert server.desk.departures[-1] == (device.id, True)
        assert len(server.desk.declines) == number


def test_closing_a_session_on_a_dead_wire_takes_little_time_when_told_to_stop(server, device):
    stop = Stop()
    with Relay(server.address) as relay:
        device.gateway = str(relay.address)
        with device.channel(stop=stop) as channel:
            session = channel.attend()
            relay.passing.clear()
            threading.Timer(0.2, stop.set).start()
            began = time.monotonic()
            session.close()
            assert time.monotonic() - began < 4
