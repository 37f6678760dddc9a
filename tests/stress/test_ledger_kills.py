"""A thousand deaths: not one release left a device without having been paid for first."""

import random

import pytest

from tests.privacy.ledger_kills import Device, Nursery

pytestmark = [pytest.mark.stress, pytest.mark.integration]
NUM_KILLS, KILLS_PER_DEVICE = 1_000, 50


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.mark.parametrize("seed", range(NUM_KILLS // KILLS_PER_DEVICE))
def test_killed_a_thousand_times_nothing_was_sent_unpaid(nursery, tmp_path, seed):
    """Several devices, because each look at a ledger reads all of it."""
    device, moments = Device(nursery, tmp_path), random.Random(seed)
    device.live("books_first", count=1)
    for _ in range(KILLS_PER_DEVICE):
        assert device.live_and_be_killed("books_first", moments) == -9
        assert device.violations() == []
    assert device.live("books_first", count=3) == 0
    assert len(device.outbox.sent()) >= KILLS_PER_DEVICE // 2
