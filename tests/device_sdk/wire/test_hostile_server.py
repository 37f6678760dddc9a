"""Whatever a server does, a device ends with a typed error and has sent nothing that it should not."""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.cancelling import Stop
from device_sdk.wire.channel import enrol
from device_sdk.wire.errors import (
    Cancelled,
    ConnectionLost,
    DeadlinePassed,
    MalformedMessage,
    PayloadMismatch,
    Refused,
    TlsTooOld,
    TooLarge,
    UntrustedServer,
    WireError,
    WrongVersion,
)
from device_sdk.wire.invitation import Invitation
from device_sdk.wire.messages import CHUNK_BYTES
from device_sdk.wire.services import ERROR_METADATA
from device_sdk.wire.signing import device_id, server_name
from device_sdk.wire.tensors import blob_of, chunks
from server_kit.daemon.authority import Authority
from tests.device_sdk.wire import examples
from tests.device_sdk.wire.devices import QUICK, TestDevice
from tests.device_sdk.wire.hostile_server import (
    WELCOME,
    HostileServer,
    babbling,
    cut,
    hanging_up,
    lying_in_wait,
    saying,
    silent,
    tls_1_2_only,
)

pytestmark = pytest.mark.integration

AUTHORITY = Authority.create()
PAYLOAD = os.urandom(2 * CHUNK_BYTES + 50)
BLOB = blob_of(PAYLOAD)
PIECES = [codec.encode(chunk) for chunk in chunks(PAYLOAD)]
IMPATIENT = replace(QUICK, connect_seconds=1.0, silence_seconds=1.0, most_attempts=2)
FOREVER = 600


def victim_of(address, authority=AUTHORITY) -> TestDevice:
    device = TestDevice()
    device.credentials = device.certified_by(authority)
    device.gateway, device.server = str(address), authority.server
    return device


@pytest.fixture
def server():
    with HostileServer(AUTHORITY) as server:
        yield server


@pytest.fixture
def channel(server):
    with victim_of(server.address).channel(IMPATIENT) as channel:
        yield channel


# Before a call is made


CERTIFICATES = {
    "another authority": (Authority.create().issue_server(["127.0.0.1"]), "cannot prove who it is"),
    "another host": (AUTHORITY.issue_server(["10.9.8.7", "evil.example"]), "mismatch"),
    "expired": (AUTHORITY.issue_server(["127.0.0.1"], now=datetime.now(UTC) - timedelta(days=100)), "expired"),
    "not yet valid": (
        AUTHORITY.issue_server(["127.0.0.1"], now=datetime.now(UTC) + timedelta(days=1)),
        "not yet valid",
    ),
}


@pytest.mark.parametrize(("certificate", "fault"), CERTIFICATES.values(), ids=CERTIFICATES)
def test_a_server_with_a_wrong_certificate_is_not_believed_and_hears_nothing(certificate, fault):
    with HostileServer(AUTHORITY, certificate) as server, victim_of(server.address).channel(IMPATIENT) as channel:
        with pytest.raises(UntrustedServer, match=fault):
            channel.attend()
        with pytest.raises(UntrustedServer, match=fault):
            channel.upload(TestDevice().update(b"secret"), b"secret")
        assert server.heard == []


@pytest.mark.parametrize(("certificate", "fault"), CERTIFICATES.values(), ids=CERTIFICATES)
def test_nobody_enrols_at_a_server_with_a_wrong_certificate(certificate, fault):
    with HostileServer(AUTHORITY, certificate) as server:
        device = TestDevice()
        with pytest.raises(UntrustedServer):
            enrol(server.invitation(), device.tls.request(), device.signing, device.ledger)
        assert server.heard == []


def test_a_server_of_tls_1_2_is_refused_by_name():
    with lying_in_wait(tls_1_2_only(AUTHORITY.issue_server(["127.0.0.1"]))) as address:
        with victim_of(address).channel(IMPATIENT) as channel, pytest.raises(TlsTooOld, match=r"TLS 1\.3"):
            channel.attend()
        device = TestDevice()
        invitation = Invitation(address, AUTHORITY.fingerprint, b"\1" * 32)
        with pytest.raises(TlsTooOld):
            enrol(invitation, device.tls.request(), device.signing, device.ledger)


@pytest.mark.parametrize("welcome", [silent, babbling, hanging_up])
def test_a_server_that_does_not_speak_tls_is_given_up_in_time(welcome):
    with lying_in_wait(welcome) as address, victim_of(address).channel(IMPATIENT) as channel:
        with pytest.raises(DeadlinePassed):
            channel.attend(timeout_seconds=1.5)
        with pytest.raises(ConnectionLost):
            channel.download(BLOB)


def test_stop_ends_a_handshake_that_hangs():
    stop = Stop()
    with lying_in_wait(silent) as address, victim_of(address).channel(stop=stop) as channel:
        threading.Timer(0.3, stop.set).start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            channel.attend()
        assert time.monotonic() - began < QUICK.connect_seconds


def test_without_the_probe_nobody_would_be_told_why(monkeypatch):
    """The broken twin: without the probe, gRPC refuses such a server too, but as if it were merely away."""
    certificate, _ = CERTIFICATES["another authority"]
    monkeypatch.setattr("device_sdk.wire.connection.Probe.check", lambda *arguments: None)
    with HostileServer(AUTHORITY, certificate) as server, victim_of(server.address).channel(IMPATIENT) as channel:
        server.answers["Attend"] = saying(WELCOME)
        with pytest.raises(DeadlinePassed):
            channel.attend(timeout_seconds=1.0)


# Enrolment


def reply_to(stranger: TestDevice, **changes) -> bytes:
    honest = m.EnrolmentReply(
        device=stranger.id,
        server=server_name(AUTHORITY.certificate),
        server_key=b"\1" * 32,
        gateway="127.0.0.1:1",
        certificate=AUTHORITY.issue_device(stranger.tls.request(), stranger.id),
        authority=AUTHORITY.certificate,
    )
    return codec.encode(replace(honest, **changes))


STRANGER = TestDevice()
REPLIES = {
    "another device": {"device": device_id(b"\2" * 32)},
    "another server's name": {"server": "covey-of-somebody-else"},
    "another authority": {"authority": Authority.create().certificate},
    "a certificate of another authority": {
        "certificate": Authority.create().issue_device(STRANGER.tls.request(), STRANGER.id)
    },
    "a certificate for another key": {"certificate": AUTHORITY.issue_device(TestDevice().tls.request(), STRANGER.id)},
    "a certificate for another device": {"certificate": AUTHORITY.issue_device(STRANGER.tls.request(), "0" * 32)},
    "no certificate": {"certificate": b"none"},
}


@pytest.mark.parametrize("changes", REPLIES.values(), ids=REPLIES)
def test_a_false_enrolment_is_not_kept(server, changes):
    server.answers["Enrol"] = saying(reply_to(STRANGER, **changes))
    with pytest.raises(UntrustedServer):
        enrol(server.invitation(), STRANGER.tls.request(), STRANGER.signing, STRANGER.ledger)


def test_an_honest_enrolment_passes_the_same_checks(server):
    server.answers["Enrol"] = saying(reply_to(STRANGER))
    reply = enrol(server.invitation(), STRANGER.tls.request(), STRANGER.signing, STRANGER.ledger)
    assert reply.device == STRANGER.id


# The stream


FIRST_WORDS = {
    "garbage": (b"\xff\xff", MalformedMessage),
    "no welcome": (codec.encode_from_server(examples.TASK), MalformedMessage),
    "another version": (
        codec.encode_from_server(m.Welcome(m.Cohorts(("0",)), version=m.ProtocolVersion(3, 1))),
        WrongVersion,
    ),
    "too much": (b"\0" * (codec.MAX_CONTROL_BYTES + 1), TooLarge),
    "far too much": (b"\0" * (8 << 20), TooLarge),
}


@pytest.mark.parametrize(("body", "error"), FIRST_WORDS.values(), ids=FIRST_WORDS)
def test_a_stream_that_begins_wrongly_is_ended(server, channel, body, error):
    server.answers["Attend"] = saying(body)
    with pytest.raises(error):
        channel.attend(timeout_seconds=20)


@pytest.mark.parametrize("body", [b"\xff\xff", b"\0" * (codec.MAX_CONTROL_BYTES + 1), WELCOME[:-1]])
def test_a_stream_that_goes_wrong_is_ended_with_a_typed_error(server, channel, body):
    server.answers["Attend"] = saying(WELCOME, body)
    session = channel.attend()
    for _ in range(2):  # whoever asks again is told again
        with pytest.raises(MalformedMessage):
            session.receive(10)


def test_a_server_that_takes_the_hello_and_says_nothing_is_left(server, channel):
    server.answers["Attend"] = lambda requests, context: server.over.wait(FOREVER) and ()
    with pytest.raises(DeadlinePassed):
        channel.attend(timeout_seconds=2.5)


def test_an_endless_stream_is_slowed_down_and_not_stored(server, channel):
    body = codec.encode_from_server(examples.TASK)

    def endless(requests, context):
        yield WELCOME
        while context.is_active():
            yield body
            sent.append(None)

    sent: list[None] = []
    server.answers["Attend"] = endless
    session = channel.attend()
    settled = -1
    # gRPC buffers some, we a few; against a device that stores everything this would not end.
    while settled != len(sent):
        settled = len(sent)
        time.sleep(0.3)
    assert session.receive(10) == examples.TASK
    session.close()


CONVERSATION = [
    WELCOME,
    codec.encode_from_server(examples.TASK),
    codec.encode_from_server(examples.FEEDBACK),
    codec.encode_from_server(m.CohortsChanged(examples.COHORTS)),
]


@pytest.mark.parametrize("length", range(len(CONVERSATION) + 1))
def test_a_stream_cut_after_any_message_is_a_lost_connection(server, channel, length):
    server.answers["Attend"] = saying(*CONVERSATION[:length], then=cut)
    if length == 0:
        with pytest.raises(DeadlinePassed):
            channel.attend(timeout_seconds=0.5)
        return
    session = channel.attend()
    for _ in range(length - 1):
        session.receive(10)
    with pytest.raises(ConnectionLost):
        session.receive(10)


def test_a_message_of_a_newer_version_is_passed_over(server, channel):
    server.answers["Attend"] = saying(WELCOME, bytes.fromhex("9a 06 02 08 01"), codec.encode_from_server(examples.TASK))
    assert channel.attend().receive(10) == examples.TASK


# Downloads


DOWNLOADS = {
    "other bytes": ([*PIECES[:2], codec.encode(m.Chunk(2 * CHUNK_BYTES, b"x" * 50))], PayloadMismatch),
    "out of order": ([PIECES[1]], MalformedMessage),
    "a piece twice": ([PIECES[0], PIECES[0]], MalformedMessage),
    "small pieces without end": ([codec.encode(m.Chunk(0, b"x"))], MalformedMessage),
    "beyond the end": ([*PIECES[:2], codec.encode(m.Chunk(2 * CHUNK_BYTES, b"x" * 51))], MalformedMessage),
    "garbage": ([b"\xff"], MalformedMessage),
    "a huge message": ([b"\0" * (8 << 20)], TooLarge),
    "nothing, again and again": ([], ConnectionLost),
}


@pytest.mark.parametrize(("bodies", "error"), DOWNLOADS.values(), ids=DOWNLOADS)
def test_a_wrong_download_is_thrown_away(server, channel, bodies, error):
    server.answers["Download"] = saying(*bodies)
    with pytest.raises(error):
        channel.download(BLOB)


def test_an_announced_size_is_not_allocated_before_a_byte_has_come(channel):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        channel.download(m.Blob(b"\0" * 32, 1 << 33))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_what_follows_a_whole_download_is_not_read(server, channel):
    def endless(requests, context):
        yield from PIECES
        while context.is_active():
            yield PIECES[0]

    server.answers["Download"] = endless
    assert channel.download(BLOB) == PAYLOAD


def honest_download(cuts: list[int]):
    """An honest server whose connection breaks after so many pieces of each attempt."""

    def answer(requests, context):
        request = codec.decode(m.DownloadRequest, next(requests))
        for number, chunk in enumerate(chunks(PAYLOAD, request.offset)):
            if cuts and number == cuts[0]:
                del cuts[0]
                cut()
            yield codec.encode(chunk)

    return answer


@pytest.mark.parametrize("cuts", [[0], [1], [2], [0, 0, 1], [1, 1], [1, 0, 1, 0]])
def test_a_download_cut_anywhere_goes_on_where_it_broke(server, cuts):
    with victim_of(server.address).channel(QUICK) as channel:
        server.answers["Download"] = honest_download(list(cuts))
        assert channel.download(BLOB) == PAYLOAD
    asked = [codec.decode(m.DownloadRequest, body).offset for _, body in server.heard]
    assert asked == [min(sum(cuts[:attempt]), 2) * CHUNK_BYTES for attempt in range(len(cuts) + 1)]


def test_a_download_that_stands_still_is_given_up(server, channel):
    server.answers["Download"] = saying(PIECES[0], then=lambda: server.over.wait(FOREVER))
    with pytest.raises((ConnectionLost, MalformedMessage)):
        channel.download(BLOB)


def test_a_download_has_a_deadline_even_if_it_moves(server, channel):
    def trickling(requests, context):
        for body in PIECES[:-1]:
            yield body
            server.over.wait(0.8)
        server.over.wait(FOREVER)

    server.answers["Download"] = trickling
    with pytest.raises(DeadlinePassed):
        channel.download(BLOB, timeout_seconds=1.2)


# Uploads


def replies(*replies: m.UploadReply) -> list[bytes]:
    return [codec.encode_upload_reply(reply) for reply in replies]


UPLOADS = {
    "more than there is": (replies(m.UploadFrom(len(PAYLOAD) + 1)), MalformedMessage),
    "asked twice": (replies(m.UploadFrom(0), m.UploadFrom(0)), MalformedMessage),
    "garbage": ([b"\xff"], MalformedMessage),
    "an unknown answer": ([bytes.fromhex("9a 06 02 08 01")], MalformedMessage),
    "nothing": ([], ConnectionLost),
    "no acknowledgement": (replies(m.UploadFrom(0)), ConnectionLost),
}


@pytest.mark.parametrize(("bodies", "error"), UPLOADS.values(), ids=UPLOADS)
def test_a_wrong_answer_to_an_upload_is_not_an_acknowledgement(server, channel, bodies, error):
    server.answers["Upload"] = saying(*bodies)
    with pytest.raises(error):
        channel.upload(TestDevice().update(PAYLOAD), PAYLOAD)


def test_an_upload_cut_at_any_message_sends_only_what_is_missing(server):
    held = bytearray()
    sent: list[int] = []

    def honest_but_cut(requests, context):
        next(requests)
        if len(sent) % 4 == 1:
            cut()
        sent.append(len(held))
        yield from replies(m.UploadFrom(len(held)))
        while len(held) < len(PAYLOAD):
            chunk = codec.decode_upload(next(requests))
            assert isinstance(chunk, m.Chunk)
            assert chunk.offset == len(held)
            held.extend(chunk.data)
            if len(sent) < 4:
                sent.append(-1)
                cut()
        yield from replies(m.UploadAccepted(b"{}"))

    server.answers["Upload"] = honest_but_cut
    with victim_of(server.address).channel(QUICK) as channel:
        channel.upload(TestDevice().update(PAYLOAD), PAYLOAD)
    assert held == PAYLOAD


def test_an_upload_that_stands_still_is_given_up(server, channel):
    server.answers["Upload"] = saying(*replies(m.UploadFrom(0)), then=lambda: server.over.wait(FOREVER))
    with pytest.raises(ConnectionLost):
        channel.upload(TestDevice().update(PAYLOAD), PAYLOAD)


def test_a_slow_server_that_goes_on_reading_is_not_given_up(server, channel):
    payload = os.urandom(24 * CHUNK_BYTES)

    def slow(requests, context):
        next(requests)
        yield from replies(m.UploadFrom(0))
        for _ in range(24):
            next(requests)
            time.sleep(0.1)
        yield from replies(m.UploadAccepted(b"{}"))

    server.answers["Upload"] = slow
    channel.upload(TestDevice().update(payload), payload)
    assert IMPATIENT.silence_seconds < 24 * 0.1


# Renewal


def test_a_false_certificate_is_not_kept_at_renewal(server):
    device = victim_of(server.address)
    with device.channel(IMPATIENT) as channel:
        for certificate in (
            Authority.create().issue_device(device.tls.request(), device.id),
            AUTHORITY.issue_device(TestDevice().tls.request(), device.id),
            AUTHORITY.issue_device(device.tls.request(), "0" * 32),
            AUTHORITY.issue_device(device.tls.request(), device.id, now=datetime.now(UTC) - timedelta(days=9)),
            b"none",
        ):
            server.answers["Renew"] = saying(codec.encode(m.RenewalReply(certificate)))
            with pytest.raises(UntrustedServer):
                channel.renew(device.tls.request())


# Refusals


def refusing(error: m.Error | bytes):
    def answer(requests, context):
        body = error if isinstance(error, bytes) else codec.encode(error)
        context.set_trailing_metadata(((ERROR_METADATA, body),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
        yield b""

    return answer


def test_a_refusal_reaches_the_app_with_its_code(server, channel):
    server.answers["Attend"] = refusing(m.Error(m.ErrorCode.REVOKED, "this device was revoked"))
    with pytest.raises(Refused, match="revoked") as refusal:
        channel.attend()
    assert refusal.value.code is m.ErrorCode.REVOKED


def test_a_refusal_that_asks_for_patience_is_waited_out(server, channel):
    answers = [refusing(m.Error(m.ErrorCode.CLOSING, "later", 0.1)), saying(WELCOME)]

    def one_after_the_other(requests, context):
        return answers.pop(0)(requests, context)

    server.answers["Attend"] = one_after_the_other
    channel.attend(timeout_seconds=20).close()


def test_a_refusal_that_is_none_is_a_typed_error(server, channel):
    server.answers["Attend"] = refusing(b"\xff\xff")
    with pytest.raises(WireError):
        channel.attend(timeout_seconds=5)
