"""A device with valid credentials that misbehaves harms nobody but itself."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import replace

import grpc
import pytest

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.messages import CHUNK_BYTES, ErrorCode
from device_sdk.wire.signing import signed
from device_sdk.wire.tensors import blob_of, chunks
from tests.device_sdk.wire import examples
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.hostile_device import HostileDevice, refusal_of

pytestmark = pytest.mark.integration

HELLO = codec.encode_from_device(m.Hello())
CHECK_IN = codec.encode_from_device(m.CheckIn())
PAYLOAD = os.urandom(2 * CHUNK_BYTES + 50)


@pytest.fixture
def hostile(server, device):
    with HostileDevice(server.address, device.credentials) as hostile:
        yield hostile


@pytest.fixture(autouse=True)
def others_do_not_notice(server):
    """After every misdeed an honest device is served as ever."""
    yield
    honest = TestDevice().known_to(server)
    server.desk.expected = None
    with honest.channel() as channel:
        with channel.attend() as session:
            assert server.gateway.push(honest.id, m.ComeBack(1.0))
            assert session.receive(10) == m.ComeBack(1.0)
        channel.upload(honest.update(PAYLOAD), PAYLOAD)
    assert server.desk.accepted[-1][2] == PAYLOAD


def held_open(*bodies: bytes):
    """A stream that says this and then nothing, for ever."""
    yield from bodies
    queue.SimpleQueue().get(timeout=30)


def uploading(header: m.ReleaseHeader, *rest: bytes) -> list[bytes]:
    return [codec.encode_upload(header), *rest]


STREAMS = {
    "nothing": ([], ErrorCode.OUT_OF_ORDER),
    "no hello": ([CHECK_IN], ErrorCode.OUT_OF_ORDER),
    "two hellos": ([HELLO, HELLO], ErrorCode.OUT_OF_ORDER),
    "garbage": ([b"\xff\xff\xff"], ErrorCode.MALFORMED),
    "garbage later": ([HELLO, b"\xff\xff\xff"], ErrorCode.MALFORMED),
    "too long": ([HELLO, b"\0" * (codec.MAX_CONTROL_BYTES + 1)], ErrorCode.TOO_LARGE),
    "another version": ([codec.encode_from_device(m.Hello(m.ProtocolVersion(2, 0)))], ErrorCode.WRONG_VERSION),
    "a flood": ([HELLO, *[CHECK_IN] * 3000], ErrorCode.TOO_MANY_CALLS),
    "a flood of nothing": ([HELLO, *[b""] * 3000], ErrorCode.TOO_MANY_CALLS),
}


@pytest.mark.parametrize(("bodies", "code"), STREAMS.values(), ids=STREAMS)
def test_a_wrong_stream_is_ended_with_the_reason(hostile, bodies, code):
    assert refusal_of(hostile.attend(bodies)) is code


def test_a_message_beyond_every_limit_is_not_even_received(hostile):
    assert refusal_of(hostile.attend([HELLO, b"\0" * (4 << 20)])) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_stream_without_a_hello_is_cut_after_a_while(hostile):
    assert refusal_of(hostile.attend(held_open())) is ErrorCode.TOO_SLOW


def test_an_upload_that_stands_still_is_cut_after_a_while(hostile, device):
    first = next(chunks(PAYLOAD))
    bodies = held_open(*uploading(device.update(PAYLOAD), codec.encode_upload(first)))
    assert refusal_of(hostile.upload(bodies)) is ErrorCode.TOO_SLOW


def test_a_device_that_does_not_read_its_download_is_cut_after_a_while(server, hostile):
    content = os.urandom(64 << 20)
    server.desk.blobs[blob_of(content).sha256] = content
    call = hostile.download(codec.encode(m.DownloadRequest(blob_of(content).sha256)))
    next(call)
    time.sleep(3)  # longer than the gateway's patience, and far more than gRPC buffers is still to come
    assert refusal_of(call) is ErrorCode.TOO_SLOW


def altered(device, **changes) -> m.UpdateHeader:
    """A header that its device signed after changing it."""
    return signed(replace(device.update(PAYLOAD), **changes), device.id, device.signing)


HEADERS = {
    "unsigned change": (lambda d: replace(d.update(PAYLOAD), round=9), ErrorCode.WRONG_SIGNATURE),
    "another's receipt": (
        lambda d: altered(d, receipt=TestDevice(sequence=0).receipt(PAYLOAD).to_json()),
        ErrorCode.RECEIPT_REFUSED,
    ),
    "a receipt for other bytes": (
        lambda d: altered(d, receipt=d.receipt(b"other").to_json()),
        ErrorCode.RECEIPT_REFUSED,
    ),
    "another number than the receipt's": (lambda d: altered(d, sequence=99), ErrorCode.RECEIPT_REFUSED),
    "another head than the receipt's": (lambda d: altered(d, ledger_head=b"\1" * 32), ErrorCode.RECEIPT_REFUSED),
    "a receipt that is none": (lambda d: altered(d, receipt=b"{}"), ErrorCode.RECEIPT_REFUSED),
    "more bytes than allowed": (
        lambda d: altered(d, payload=m.Blob(b"\1" * 32, 9 << 20), encoding=m.GridEncoding(9 << 20, 1)),
        ErrorCode.TOO_LARGE,
    ),
}


@pytest.mark.parametrize(("make", "code"), HEADERS.values(), ids=HEADERS)
def test_a_wrong_header_is_refused_before_any_byte_is_taken(server, hostile, device, make, code):
    assert refusal_of(hostile.upload(held_open(*uploading(make(device))))) is code
    assert list(server.spool.iterdir()) == []
    assert server.desk.accepted == []


def test_a_task_that_was_not_asked_for_is_refused(server, hostile, device):
    server.desk.expected = {"t-other"}
    assert refusal_of(hostile.upload(held_open(*uploading(device.update(PAYLOAD))))) is ErrorCode.NOT_ASKED


def pieces(*parts: tuple[int, bytes]) -> list[bytes]:
    return [codec.encode_upload(m.Chunk(offset, data)) for offset, data in parts]


WHOLE = [(chunk.offset, bytes(chunk.data)) for chunk in chunks(PAYLOAD)]
BODIES = {
    "out of order": (pieces(WHOLE[1], WHOLE[0]), ErrorCode.OUT_OF_ORDER),
    "twice": (pieces(WHOLE[0], WHOLE[0]), ErrorCode.OUT_OF_ORDER),
    "too short a piece": (pieces((0, PAYLOAD[:10])), ErrorCode.OUT_OF_ORDER),
    "beyond the end": (pieces(WHOLE[0], WHOLE[1], (2 * CHUNK_BYTES, b"x" * 60)), ErrorCode.OUT_OF_ORDER),
    "cut": (pieces(WHOLE[0]), ErrorCode.OUT_OF_ORDER),
    "other bytes": (pieces(WHOLE[0], WHOLE[1], (2 * CHUNK_BYTES, b"x" * 50)), ErrorCode.WRONG_HASH),
    "garbage": ([b"\xff\xff"], ErrorCode.MALFORMED),
    "a second header": ([codec.encode_upload(examples.UPDATE)], ErrorCode.OUT_OF_ORDER),
}


@pytest.mark.parametrize(("bodies", "code"), BODIES.values(), ids=BODIES)
def test_wrong_pieces_are_refused_and_nothing_is_counted(server, hostile, device, bodies, code):
    assert refusal_of(hostile.upload(uploading(device.update(PAYLOAD), *bodies))) is code
    assert server.desk.accepted == []


SMALL = b"a small update"
DELIVERIES = {
    "other bytes": (lambda d: m.Delivery(d.update(SMALL), m.Chunk(0, b"another update")), ErrorCode.WRONG_HASH),
    "too few": (lambda d: m.Delivery(d.update(SMALL), m.Chunk(0, SMALL[:-1])), ErrorCode.OUT_OF_ORDER),
    "too many": (lambda d: m.Delivery(d.update(SMALL), m.Chunk(0, SMALL + b"x")), ErrorCode.OUT_OF_ORDER),
    "from elsewhere": (lambda d: m.Delivery(d.update(SMALL), m.Chunk(1, SMALL)), ErrorCode.OUT_OF_ORDER),
    "of several pieces": (lambda d: m.Delivery(d.update(PAYLOAD), m.Chunk(0, WHOLE[0][1])), ErrorCode.OUT_OF_ORDER),
    "changed since it was signed": (
        lambda d: m.Delivery(replace(d.update(SMALL), round=9), m.Chunk(0, SMALL)),
        ErrorCode.WRONG_SIGNATURE,
    ),
    "of another device": (
        lambda d: m.Delivery(TestDevice(server=d.server).update(SMALL), m.Chunk(0, SMALL)),
        ErrorCode.WRONG_SIGNATURE,
    ),
}


@pytest.mark.parametrize(("make", "code"), DELIVERIES.values(), ids=DELIVERIES)
def test_a_wrong_delivery_is_refused_and_nothing_is_counted(server, hostile, device, make, code):
    assert refusal_of(lambda: hostile.deliver(codec.encode_delivery(make(device)))) is code
    assert server.desk.accepted == []


@pytest.mark.parametrize("body", [b"", b"\xff\xff", codec.encode_upload(examples.UPDATE)])
def test_a_delivery_that_is_none_is_refused(hostile, body):
    assert refusal_of(lambda: hostile.deliver(body)) is ErrorCode.MALFORMED


def test_a_delivery_that_was_not_asked_for_is_refused(server, hostile, device):
    server.desk.expected = {"t-other"}
    delivery = m.Delivery(device.update(SMALL), m.Chunk(0, SMALL))
    assert refusal_of(lambda: hostile.deliver(codec.encode_delivery(delivery))) is ErrorCode.NOT_ASKED


def test_a_replayed_delivery_is_acknowledged_alike_and_counted_once(server, hostile, device):
    body = codec.encode_delivery(m.Delivery(device.update(SMALL), m.Chunk(0, SMALL)))
    answers = [codec.decode(m.UploadAccepted, hostile.deliver(body)) for _ in range(3)]
    assert [answer.repeated for answer in answers] == [False, True, True]
    assert len({answer.countersignature for answer in answers}) == 1
    assert [payload for _, _, payload in server.desk.accepted] == [SMALL]


def test_a_piece_beyond_the_end_of_a_model_is_refused(server, hostile):
    server.desk.blobs[blob_of(SMALL).sha256] = SMALL
    whole = hostile.fetch(codec.encode(m.DownloadRequest(blob_of(SMALL).sha256)))
    assert codec.decode_chunk(whole) == m.Chunk(0, SMALL)
    beyond = codec.encode(m.DownloadRequest(blob_of(SMALL).sha256, len(SMALL)))
    assert refusal_of(lambda: hostile.fetch(beyond)) is ErrorCode.OUT_OF_ORDER
    unknown = codec.encode(m.DownloadRequest(b"\0" * 32))
    assert refusal_of(lambda: hostile.fetch(unknown)) is ErrorCode.NOT_FOUND


def test_an_upload_that_begins_with_a_piece_is_refused(hostile):
    assert refusal_of(hostile.upload(pieces(WHOLE[0]))) is ErrorCode.OUT_OF_ORDER


def test_a_replayed_update_is_acknowledged_and_counted_once(server, hostile, device):
    bodies = uploading(device.update(PAYLOAD), *pieces(*WHOLE))
    for _ in range(3):
        list(hostile.upload(bodies))
    assert len(server.desk.accepted) == 1


def test_an_older_update_than_the_last_is_refused(server, device):
    older, newer = device.update(b"older"), device.update(b"newer")
    with device.channel() as channel:
        channel.upload(newer, b"newer")
    with HostileDevice(server.address, device.credentials) as hostile:
        bodies = uploading(older, *pieces((0, b"older")))
        assert refusal_of(hostile.upload(bodies)) is ErrorCode.RECEIPT_REFUSED
    assert [payload for _, _, payload in server.desk.accepted] == [b"newer"]


def test_a_device_has_few_calls_at_once(server, hostile):
    entered, proceed = threading.Semaphore(0), threading.Event()

    def slow(who, sha256):
        entered.release()
        assert proceed.wait(30)

    server.desk.blob = slow
    request = codec.encode(m.DownloadRequest(b"\0" * 32))
    opened = [hostile.download(request) for _ in range(6)]
    for _ in opened:
        assert entered.acquire(timeout=30)
    assert refusal_of(hostile.download(request)) is ErrorCode.TOO_MANY_CALLS
    proceed.set()
    assert {refusal_of(call) for call in opened} == {ErrorCode.NOT_FOUND}


def test_a_device_cannot_fill_the_disk_with_unfinished_uploads(hostile, device, tmp_path):
    for size in range(2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 5):
        payload = os.urandom(size)
        refusal_of(hostile.upload(uploading(device.update(payload), *pieces((0, payload[:CHUNK_BYTES])))))
        assert len(list((tmp_path / "spool").iterdir())) == 1


def test_a_later_attempt_at_an_upload_takes_over_from_one_that_hangs(server, hostile, device):
    header = device.update(PAYLOAD)
    hanging = hostile.upload(held_open(*uploading(header, *pieces(WHOLE[0]))))
    assert codec.decode_upload_reply(next(hanging)) == m.UploadFrom(0)
    with device.channel() as channel:
        channel.upload(header, PAYLOAD)
    assert refusal_of(hanging) is ErrorCode.OUT_OF_ORDER
    assert server.desk.accepted[0][2] == PAYLOAD


def test_many_attempts_at_one_upload_at_once_are_counted_once(server, device):
    header = device.update(PAYLOAD)
    outcomes = []

    def attempt() -> None:
        with device.channel() as channel:
            outcomes.append(channel.upload(header, PAYLOAD, timeout_seconds=60))

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert [payload for _, _, payload in server.desk.accepted] == [PAYLOAD]


def test_a_newer_upload_of_a_device_takes_over_from_an_older_that_hangs(server, hostile, device):
    hanging = hostile.upload(held_open(*uploading(device.update(PAYLOAD), *pieces(WHOLE[0]))))
    next(hanging)
    other = os.urandom(2 * CHUNK_BYTES)
    with device.channel() as channel:
        channel.upload(device.update(other), other)
    assert refusal_of(hanging) is ErrorCode.OUT_OF_ORDER
    assert [payload for _, _, payload in server.desk.accepted] == [other]


def test_what_a_failing_desk_could_not_store_is_not_sent_again(server, hostile, device):
    accept = server.desk.accept
    failures = [RuntimeError("the disk is full")]

    def failing_once(*arguments):
        if failures:
            raise failures.pop()
        return accept(*arguments)

    server.desk.accept = failing_once
    header = device.update(PAYLOAD)
    assert refusal_of(hostile.upload(uploading(header, *pieces(*WHOLE)))) is ErrorCode.INTERNAL
    replies = [codec.decode_upload_reply(body) for body in hostile.upload(uploading(header))]
    assert replies[0] == m.UploadFrom(len(PAYLOAD))
    assert isinstance(replies[1], m.UploadAccepted)
    assert server.desk.accepted[0][2] == PAYLOAD


@pytest.mark.parametrize("body", [b"", b"\xff", codec.encode(m.RenewalRequest(b"not a request"))])
def test_a_wrong_renewal_is_refused(hostile, body):
    assert refusal_of(lambda: iter([hostile.renew(body)])) in {
        ErrorCode.MALFORMED,
        ErrorCode.BAD_REQUEST_FOR_CERTIFICATE,
    }


def test_a_device_that_never_reads_its_stream_is_not_waited_for(server, device):
    """Its messages pile up to a limit; the rest is dropped with the stream, and pushing never blocks."""
    with HostileDevice(server.address, device.credentials) as hostile:
        unread = hostile.attend(held_open(HELLO))
        server.desk.wait_for(lambda desk: "welcome" in desk.story)
        began = time.monotonic()
        for _ in range(5000):
            server.gateway.push(device.id, examples.TASK)
        assert time.monotonic() - began < 10
        unread.cancel()
