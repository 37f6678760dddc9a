"""What fits in one chunk travels in one call, and a small model ahead of its task: as safely as in a stream."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.cancelling import Stop
from device_sdk.wire.errors import (
    Cancelled,
    ConnectionLost,
    DeadlinePassed,
    MalformedMessage,
    PayloadMismatch,
    Refused,
    TooLarge,
    WireError,
)
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from tests.device_sdk.wire import examples
from tests.device_sdk.wire.devices import TestDevice
from tests.device_sdk.wire.hostile_server import WELCOME, HostileServer, cut, saying
from tests.device_sdk.wire.test_hostile_server import AUTHORITY, FOREVER, IMPATIENT, victim_of

pytestmark = pytest.mark.integration

SMALL = os.urandom(5000)
BLOB = blob_of(SMALL)
ACCEPTED = codec.encode(m.UploadAccepted(b"{}"))


@pytest.fixture
def hostile():
    with HostileServer(AUTHORITY) as server:
        yield server


@pytest.fixture
def channel(hostile):
    with victim_of(hostile.address).channel(IMPATIENT) as channel:
        yield channel


FETCHED = {
    "other bytes": (codec.encode(m.Chunk(0, b"x" * 5000)), PayloadMismatch),
    "too few": (codec.encode(m.Chunk(0, SMALL[:-1])), MalformedMessage),
    "too many": (codec.encode(m.Chunk(0, SMALL + b"x")), MalformedMessage),
    "from elsewhere": (codec.encode(m.Chunk(1, SMALL)), MalformedMessage),
    "garbage": (b"\xff\xff", MalformedMessage),
    "a huge message": (b"\0" * (8 << 20), TooLarge),
}


@pytest.mark.parametrize(("body", "error"), FETCHED.values(), ids=FETCHED)
def test_a_wrong_piece_is_thrown_away(hostile, channel, body, error):
    hostile.answers["Fetch"] = saying(body)
    with pytest.raises(error):
        channel.download(BLOB)


@pytest.mark.parametrize("body", [b"\xff", b"", codec.encode(m.UploadAccepted(b"{}"))[:-1]])
def test_a_wrong_answer_to_a_delivery_is_not_an_acknowledgement(hostile, channel, body):
    hostile.answers["Deliver"] = saying(body)
    with pytest.raises(WireError):
        channel.upload(TestDevice().update(SMALL), SMALL)


def test_a_delivery_whose_answer_was_lost_is_sent_again_the_same(hostile, channel):
    attempts = []

    def answered_at_last(requests, context):
        attempts.append(next(requests))
        if len(attempts) < 2:
            cut()
        yield ACCEPTED

    hostile.answers["Deliver"] = answered_at_last
    check_in = m.CheckIn(m.AffinityClaim("0"))
    channel.upload(TestDevice().update(SMALL), SMALL, check_in=check_in)
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]
    assert codec.decode_delivery(attempts[0]).check_in == check_in


@pytest.mark.parametrize("call", ["Fetch", "Deliver"])
def test_a_server_that_says_nothing_is_given_up(hostile, channel, call):
    hostile.answers[call] = lambda requests, context: hostile.over.wait(FOREVER) and ()
    with pytest.raises(ConnectionLost):
        transfer(call, channel)
    with pytest.raises(DeadlinePassed):
        transfer(call, channel, timeout_seconds=0.3)


@pytest.mark.parametrize("call", ["Fetch", "Deliver"])
def test_stop_ends_a_call_that_hangs_at_once(hostile, call):
    stop = Stop()
    hostile.answers[call] = lambda requests, context: hostile.over.wait(FOREVER) and ()
    with victim_of(hostile.address).channel(stop=stop) as channel:
        threading.Timer(0.5, stop.set).start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            transfer(call, channel)
        assert time.monotonic() - began < 4


def transfer(call, channel, timeout_seconds=None):
    if call == "Fetch":
        channel.download(BLOB, timeout_seconds)
    else:
        channel.upload(TestDevice().update(SMALL), SMALL, timeout_seconds)


TASK_BODY = codec.encode_from_server(examples.TASK)


def enclosing(*contents: bytes):
    return saying(WELCOME, *(TASK_BODY + codec.encode_enclosed(content) for content in contents))


def test_what_was_enclosed_is_not_asked_for(hostile, channel):
    hostile.answers["Attend"] = enclosing(SMALL)
    session = channel.attend()
    assert session.receive(10) == examples.TASK
    assert channel.download(BLOB) == SMALL  # this server answers no other call


@pytest.mark.parametrize("enclosed", [(b"x" * 5000,), (SMALL[:-1],), (SMALL, b"another since")], ids=range(3))
def test_an_enclosure_with_other_bytes_is_not_believed(hostile, channel, enclosed):
    hostile.answers["Attend"] = enclosing(*enclosed)
    hostile.answers["Fetch"] = saying(codec.encode(m.Chunk(0, SMALL)))
    session = channel.attend()
    for _ in enclosed:
        session.receive(10)
    assert channel.download(BLOB) == SMALL


def test_an_enclosure_beyond_its_limit_ends_the_stream(hostile, channel):
    hostile.answers["Attend"] = enclosing(bytes(m.ENCLOSED_BYTES + 1))
    with pytest.raises(TooLarge):
        channel.attend().receive(10)


def model_of(num_weights: int) -> tuple[bytes, m.Task]:
    import numpy as np

    tensors = {"w": np.ones(num_weights, np.float32)}
    payload = model_bytes(tensors)
    return payload, replace(examples.TASK, model=m.ModelReference(1, blob_of(payload), model_specs(tensors)))


@pytest.mark.parametrize(("num_weights", "asked"), [(1000, 0), (20_000, 1)])
def test_a_gateway_encloses_small_models_however_a_task_is_given(server, device, num_weights, asked):
    payload, task = model_of(num_weights)
    blobs = {blob_of(payload).sha256: payload}
    found = []

    def blob(who, sha256):
        found.append(sha256)
        return blobs.get(sha256)

    server.desk.blob = blob
    server.desk.answer = lambda who, check_in: task
    with device.channel() as channel, channel.attend() as session:
        assert server.gateway.push(device.id, task)
        session.check_in(m.CheckIn())
        for _ in range(2):
            assert session.receive(10) == task
        before = len(found)
        assert channel.download(task.model.blob) == payload
        assert len(found) - before == asked


def test_a_task_is_pushed_even_if_its_model_cannot_be_read(server, device, caplog):
    _, task = model_of(10)

    def failing(who, sha256):
        raise OSError("the disk is gone")

    with device.channel() as channel, channel.attend() as session:
        assert server.gateway.push(device.id, task)  # unknown to the desk
        server.desk.blob = failing
        assert server.gateway.push(device.id, task)
        for _ in range(2):
            assert session.receive(10) == task
        with pytest.raises((Refused, DeadlinePassed)):
            channel.download(task.model.blob, timeout_seconds=1)
    assert "failed to read a model" in caplog.text


HEAPS = """
import ctypes, sys, threading
from device_sdk.wire.one_heap import share_one_heap
if sys.argv[1:]:
    assert share_one_heap()
begin = threading.Barrier(4)
def work():
    kept = [bytearray(5000) for _ in range(100)]
    begin.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""


def test_threads_share_a_heap_when_told_to_and_not_otherwise():
    if not hasattr(ctypes.CDLL(None), "malloc_stats"):
        pytest.skip("only glibc has heaps for threads")
    shared, apart = (
        subprocess.run([sys.executable, "-c", HEAPS, *told], capture_output=True, text=True, check=True).stderr
        for told in (["shared"], [])
    )
    assert "Arena 1:" not in shared
    assert "Arena 1:" in apart
