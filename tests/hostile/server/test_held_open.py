"""Whoever opens calls or connections and says nothing keeps nobody out: an honest device comes in within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk.wire.channel import enrol
from device_sdk.wire.errors import WireError
from device_sdk.wire.messages import CheckIn, ErrorCode
from device_sdk.wire.services import ENROLMENT, FEDERATION
from server_kit.daemon.calls import Calls, too_many_calls
from server_kit.daemon.connections import held_to
from server_kit.daemon.enrolment import EnrolmentSettings
from server_kit.daemon.gateway import GatewaySettings
from tests.device_sdk.wire.devices import TestDevice
from tests.hostile.server.strangers import connection, idle_connections, over, silent_calls, silent_sockets
from tests.server_kit.daemon.hostile_device import refusal_of
from tests.server_kit.daemon.memory_server import MemoryServer

pytestmark = pytest.mark.integration

STRANGERS = EnrolmentSettings(
    message_seconds=4.0, calls_per_address=8, most_calls=32, connections_per_address=12, most_connections=64
)
DEVICES = GatewaySettings(most_connections_per_device=3, silence_seconds=4.0, sweep_seconds=0.1)
SECONDS = 5.0
"""Within which an honest device comes in, whatever others do; two cores are enough for one handshake in that time."""
ENROL, DELIVER = (ENROLMENT, "Enrol"), (FEDERATION, "Deliver")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    server = MemoryServer(tmp_path / "spool", DEVICES, strangers=STRANGERS)
    yield server
    server.close()


def seconds_to_enrol(server: MemoryServer) -> float:
    device, begun = TestDevice(), time.monotonic()
    enrol(server.invitation(), device.tls.request(), device.signing, device.ledger, timeout_seconds=SECONDS)
    return time.monotonic() - begun


def wait_until(condition, seconds=15.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


def test_calls_without_a_message_close_nobody_out_of_enrolment(server):
    with silent_calls(server.enrolment_address, server.authority.certificate, ENROL, 48) as calls:
        wait_until(lambda: over(calls) >= 48 - STRANGERS.calls_per_address)
        assert seconds_to_enrol(server) < SECONDS


def test_a_desk_that_refuses_the_newcomer_instead_is_caught(server, monkeypatch):
    """The broken twin: first come, first served."""

    def refuse_the_newcomer(calls, peer):
        raise too_many_calls()

    monkeypatch.setattr(Calls, "_end_oldest_silent", refuse_the_newcomer)
    with silent_calls(server.enrolment_address, server.authority.certificate, ENROL, 48) as calls:
        wait_until(lambda: over(calls) >= 48 - STRANGERS.calls_per_address)
        device = TestDevice()
        with pytest.raises(WireError):
            enrol(server.invitation(), device.tls.request(), device.signing, device.ledger, timeout_seconds=2.0)


def test_a_call_without_a_message_is_ended_after_a_while(server):
    with silent_calls(server.enrolment_address, server.authority.certificate, ENROL, 4) as calls:
        time.sleep(1.0)
        assert over(calls) == 0
        wait_until(lambda: over(calls) == 4, STRANGERS.message_seconds + 3)
        assert {refusal_of(call.result) for call in calls} == {ErrorCode.TOO_SLOW}


@pytest.mark.parametrize("open_connections", [silent_sockets, None], ids=["without TLS", "without a call"])
def test_an_address_holds_few_connections_and_keeps_nobody_out(server, open_connections):
    address, most = server.enrolment_address, STRANGERS.connections_per_address
    held = (
        silent_sockets(address, 50) if open_connections else idle_connections(address, server.authority.certificate, 50)
    )
    with held:
        assert seconds_to_enrol(server) < SECONDS
        wait_until(lambda: len(held_to(address.port)) <= most)
        assert seconds_to_enrol(server) < SECONDS


def test_a_full_port_has_room_again_at_once(server):
    """More connections than the port takes: gRPC would keep newcomers out until some of them are idle for too long."""
    address = server.enrolment_address
    with silent_sockets(address, STRANGERS.most_connections + 40):
        time.sleep(2.5)
        assert seconds_to_enrol(server) < SECONDS


def test_every_call_of_a_device_counts_before_it_brings_its_message(server):
    device = TestDevice().known_to(server)
    with silent_calls(server.address, server.authority.certificate, DELIVER, 40, device.credentials) as calls:
        wait_until(lambda: over(calls) >= 40 - DEVICES.most_calls_per_device)
        time.sleep(1.0)
        assert over(calls) == 40 - DEVICES.most_calls_per_device
        wait_until(lambda: over(calls) == 40, DEVICES.silence_seconds + 3)


def test_silent_calls_do_not_keep_out_the_device_itself_nor_others(server):
    device, other = TestDevice().known_to(server), TestDevice().known_to(server)
    with silent_calls(server.address, server.authority.certificate, DELIVER, 40, device.credentials):
        for honest in (device, other):
            begun = time.monotonic()
            with honest.channel() as channel, channel.attend(SECONDS) as session:
                session.check_in(CheckIn())
                server.desk.wait_for(lambda desk, honest=honest: any(who == honest.id for who, _ in desk.check_ins))
            assert time.monotonic() - begun < SECONDS


def test_a_device_keeps_its_newest_connections(server):
    device, channels, ends = TestDevice().known_to(server), [], []
    try:
        for _ in range(12):
            channels.append(connection(server.address, server.authority.certificate, device.credentials))
            refusal_of(lambda: channels[-1].unary_unary(f"/{FEDERATION}/Renew")(b"", timeout=10))
            ends += [each.end for each in held_to(server.address.port) if each.end not in ends]
        wait_until(lambda: len(held_to(server.address.port)) <= DEVICES.most_connections_per_device)
        assert {each.end for each in held_to(server.address.port)} == set(ends[-DEVICES.most_connections_per_device :])
    finally:
        for channel in channels:
            channel.close()


def test_connections_of_another_device_stay(server):
    device, other = TestDevice().known_to(server), TestDevice().known_to(server)
    with other.channel() as quiet, quiet.attend(SECONDS) as session:
        channels = [connection(server.address, server.authority.certificate, device.credentials) for _ in range(12)]
        for channel in channels:
            refusal_of(lambda channel=channel: channel.unary_unary(f"/{FEDERATION}/Renew")(b"", timeout=10))
        wait_until(lambda: len(held_to(server.address.port)) <= DEVICES.most_connections_per_device + 1)
        session.check_in(CheckIn())
        server.desk.wait_for(lambda desk: any(who == other.id for who, _ in desk.check_ins))
        for channel in channels:
            channel.close()
