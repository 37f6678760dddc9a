"""What a server has had is counted by purpose, by day and in all, and outlives the process."""

from __future__ import annotations

import pytest

from device_sdk.key_stores import FileKeyStore
from device_sdk.tally import Taken, Tally
from device_sdk.vault import Vault

DAY = 86_400
SERVER = "localhost:8443"


@pytest.fixture
def vault(tmp_path):
    with Vault.open(tmp_path / "state", FileKeyStore(tmp_path / "device.key")) as opened:
        yield opened


def test_a_new_day_begins_anew_and_the_sum_goes_on(vault):
    tally = Tally(vault, SERVER)
    for now in (10 * DAY, 10 * DAY + 5, 11 * DAY):
        tally.count("training", now)
    assert tally.taken("training", 11 * DAY + 1) == Taken(11, 1, 3)
    assert tally.taken("training", 12 * DAY) == Taken(12, 0, 3)
    assert tally.taken("question", 11 * DAY) == Taken(11, 0, 0)
    assert Tally(vault, SERVER).taken("training", 11 * DAY) == Taken(11, 1, 3)
    assert Tally(vault, "another:1").taken("training", 11 * DAY) == Taken(11, 0, 0)


def test_a_clock_that_is_set_back_gives_no_new_day(vault):
    tally = Tally(vault, SERVER)
    tally.count("training", 11 * DAY)
    tally.count("training", 3 * DAY)
    assert tally.taken("training", 3 * DAY) == Taken(11, 2, 2)


def test_a_count_belongs_to_the_transaction_that_it_is_made_in(vault):
    tally = Tally(vault, SERVER)

    def fails():
        with vault.changing():
            tally.count("training", DAY)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert tally.taken("training", DAY) == Taken(1, 0, 0)
