"""Daemon and devices are killed at random moments: both come back without help, and every update is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server_kit.daemon.chaos import VICTIMS, Chaos, survived
from tests.server_kit.daemon.mortal_device import MortalDevice
from tests.server_kit.daemon.sdk_device import FORGETS

pytestmark = pytest.mark.integration


def test_a_dozen_kills_lose_nothing_and_double_nothing_and_it_would_show(tmp_path):
    with survived(tmp_path, hits=14, seed=1) as chaos:
        assert chaos.fleet.thanked
        assert set(chaos.hits) == set(VICTIMS)
        assert all(device.receipts() for device in chaos.mortals)
        an_update_counted_twice_or_not_at_all_shows_in_the_sum(chaos)
        a_receipt_too_few_or_too_many_disagrees_with_the_ledger(chaos)
        a_device_that_dies_before_it_sends_must_not_forget(chaos, tmp_path / "one-more")


def an_update_counted_twice_or_not_at_all_shows_in_the_sum(chaos: Chaos) -> None:
    """A broken twin of the store."""
    counted, sent = chaos.daemon.folded(), chaos.mortals[0].sent()
    numbers = next(numbers for task, numbers in sent.items() if chaos.was_folded(task))
    chaos.check_sum(counted)
    for model in (counted + numbers, counted - numbers):
        with pytest.raises(AssertionError):
            chaos.check_sum(model)


def a_receipt_too_few_or_too_many_disagrees_with_the_ledger(chaos: Chaos) -> None:
    """A broken twin of the receipts."""
    device, other = chaos.mortals
    honest = device.receipts()
    for receipts in (honest[:-1], [*honest, honest[-1]], other.receipts()):
        with pytest.raises(AssertionError, match="disagree"):
            device.check_ledger(receipts)


def a_device_that_dies_before_it_sends_must_not_forget(chaos: Chaos, home: Path) -> None:
    """A broken twin of the device: it drops what it has released and nobody else has seen."""
    with MortalDevice(chaos.daemon, home) as device:
        device.enrol()
        device.die_before_sending()
        device.end(rounds=1)
        device.check_ledger(device.receipts())
        device.die_before_sending()
        device.end(rounds=0, way=FORGETS)
        with pytest.raises(AssertionError, match="disagree"):
            device.check_ledger(device.receipts())
