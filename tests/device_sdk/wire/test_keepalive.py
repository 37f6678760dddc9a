"""An idle stream stays open for as long as both ends are there, and a dead one is found out without traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from device_sdk.wire import messages as m
from device_sdk.wire.errors import ConnectionLost, DeadlinePassed
from tests.device_sdk.wire.devices import QUICK
from tests.device_sdk.wire.relay import Relay

pytestmark = [pytest.mark.integration, pytest.mark.stress]

OFTEN = replace(QUICK, keepalive_seconds=10.0)  # gRPC allows no less


def test_an_idle_stream_is_kept_open_and_its_pings_are_no_offence(server, device):
    with device.channel(OFTEN) as channel, channel.attend() as session:
        with pytest.raises(DeadlinePassed):
            session.receive(45)
        assert server.gateway.push(device.id, m.ComeBack(1.0))
        assert session.receive(10) == m.ComeBack(1.0)


def test_a_wire_that_swallows_everything_is_found_out(server, device):
    with Relay(server.address) as relay:
        device.gateway = str(relay.address)
        with device.channel(OFTEN) as channel:
            session = channel.attend()
            relay.passing.clear()
            with pytest.raises(ConnectionLost):
                session.receive(60)
