"""The wire may break at any byte: transfers go on, each update is counted once, and little is sent twice."""

from __future__ import annotations

import os
import random

import pytest

from device_sdk.wire import messages as m
from device_sdk.wire.errors import ConnectionLost
from device_sdk.wire.messages import CHUNK_BYTES
from device_sdk.wire.tensors import blob_of
from tests.device_sdk.wire.relay import Relay

pytestmark = pytest.mark.integration

PAYLOAD = os.urandom(4 * CHUNK_BYTES + 123)
# A connection's handshakes (probe and gRPC) and its first call take some 8,000 bytes.
RANDOM = random.Random(20301)
BREAKS = [
    *([number] for number in (0, 1, 500, 2_000, 4_000, 5_000, 6_000, 8_000, 12_000)),
    *([RANDOM.randrange(2 * len(PAYLOAD)) for _ in range(6)] for _ in range(8)),
]


@pytest.mark.parametrize("breaks", BREAKS, ids=str)
def test_both_directions_survive_breaks_at_any_byte(server, device, breaks):
    server.desk.blobs[blob_of(PAYLOAD).sha256] = PAYLOAD
    with Relay(server.address, breaks) as relay:
        device.gateway = str(relay.address)
        header = device.update(PAYLOAD)
        with device.channel() as channel:
            assert channel.download(blob_of(PAYLOAD)) == PAYLOAD
            channel.upload(header, PAYLOAD)
            channel.upload(header, PAYLOAD)
    assert [payload for _, _, payload in server.desk.accepted] == [PAYLOAD]


@pytest.mark.parametrize("after", range(0, 16_000, 1_500))
def test_a_stream_survives_breaks_at_any_byte(server, device, after):
    server.desk.answer = lambda who, check_in: m.ComeBack(7.0)
    with Relay(server.address, [after, after + 700]) as relay:
        device.gateway = str(relay.address)
        with device.channel() as channel:
            answered = None
            while answered is None:
                try:
                    with channel.attend(timeout_seconds=20) as session:
                        session.check_in(m.CheckIn())
                        answered = session.receive(20)
                except ConnectionLost:
                    continue
    assert answered == m.ComeBack(7.0)


@pytest.mark.parametrize("megabytes", [1, 8])
def test_a_round_takes_at_most_a_fiftieth_more_than_its_tensors(server, device, megabytes):
    payload = os.urandom(megabytes << 20)
    server.desk.blobs[blob_of(payload).sha256] = payload
    with Relay(server.address) as relay:
        device.gateway = str(relay.address)
        with device.channel() as channel, channel.attend() as session:
            session.check_in(m.CheckIn())
            channel.download(blob_of(payload))
            channel.upload(device.update(payload), payload)
        # All of it: TCP's content in both directions, with TLS, HTTP/2, both handshakes and the stream.
        assert relay.to_device + relay.to_server <= 1.02 * 2 * len(payload)


def test_after_a_cut_only_what_is_missing_is_sent(server, device):
    payload = os.urandom(8 * CHUNK_BYTES)
    with Relay(server.address, [1 << 30, 6 * CHUNK_BYTES]) as relay:  # the first connection is the probe's
        device.gateway = str(relay.address)
        with device.channel() as channel:
            channel.upload(device.update(payload), payload)
        assert relay.connections > 2
        # What was under way when it broke is sent again, the rest is not: two buffers at most.
        assert relay.to_server <= 1.02 * len(payload) + 3 * CHUNK_BYTES
