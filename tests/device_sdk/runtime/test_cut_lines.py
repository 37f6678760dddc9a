"""The line breaks again and again, after any number of bytes: every round is ended, paid for and counted once."""

from __future__ import annotations

import random

import pytest

from device_sdk.device import Device
from device_sdk.wire.channel import Channel, ChannelSettings
from tests.device_sdk.runtime.federation import check_reconciled
from tests.device_sdk.runtime.trainers import LABELS, trainer
from tests.device_sdk.wire.relay import Relay

pytestmark = pytest.mark.integration

HASTY = ChannelSettings(first_backoff_seconds=0.01, most_backoff_seconds=0.02, connect_seconds=5.0)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr("device_sdk.runtime._LONGEST_SETBACK_SECONDS", 0.02)
    monkeypatch.setattr("device_sdk.runtime.FEEDBACK_PATIENCE_SECONDS", 0.3)  # some of it is lost with its stream


@pytest.mark.parametrize("seed", range(3))
def test_cut_after_any_byte_every_round_is_ended_once(begin, tmp_path, monkeypatch, hasty, seed):
    chance = random.Random(seed)
    federation = begin(rounds=3)
    breaks = [chance.randrange(0, 40_000) for _ in range(12)]
    with federation.enrolled(tmp_path) as device, Relay(federation.server.address, breaks) as relay:

        def through_the_relay(self, identity, stop):
            return Channel(str(relay.address), identity.credentials, HASTY, stop=stop)

        monkeypatch.setattr(Device, "_channel", through_the_relay)
        assert device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5, timeout_seconds=60)
        device.run(trainer(), rounds=3, timeout_seconds=60)
        assert set(device.status().rounds) <= {"uploaded"}
        assert relay.connections > 1
    assert [header.task for header, _ in federation.updates] == ["task-1", "task-2", "task-3"]
    check_reconciled(federation, tmp_path / "state")
