"""Killed at any point, a device has never sent what it had not booked, and goes on afterwards."""

import random

import pytest

from tests.privacy.ledger_child import FAULTS
from tests.privacy.ledger_kills import Device, Nursery

pytestmark = pytest.mark.integration
KILLED = -9


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def device(nursery, tmp_path):
    return Device(nursery, tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_this_point_nothing_was_sent_unpaid_and_the_device_goes_on(device, fault):
    assert device.live("books_first", fault=fault, count=5) == KILLED
    for _ in range(2):
        assert device.live("books_first", count=3) == 0
        assert device.violations() == []
    assert len(device.outbox.sent()) >= 6


def test_killed_forty_times_at_random_nothing_was_sent_unpaid(device):
    moments = random.Random(2026)
    device.live("books_first", count=1)
    for _ in range(40):
        assert device.live_and_be_killed("books_first", moments) == KILLED
        assert device.violations() == []
    assert device.live("books_first", count=3) == 0
    assert len(device.outbox.sent()) >= 20


def test_harness_catches_a_device_that_books_after_sending(device):
    device.live("books_after_sending", count=1)
    assert device.violations() == []
    assert device.live("books_after_sending", fault="after sending") == KILLED
    assert any("was sent and not paid for" in violation for violation in device.violations())


def test_random_kills_catch_a_device_that_books_after_sending(device):
    moments = random.Random(2027)
    device.live("books_after_sending", count=1)
    for _ in range(40):
        device.live_and_be_killed("books_after_sending", moments)
        if device.violations():
            return
    pytest.fail("forty kills did not show that this device books too late")
