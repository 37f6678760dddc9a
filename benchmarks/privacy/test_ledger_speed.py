"""What the ledger costs a device: a spend, an answer, an opening. Beside it, what the disk alone costs."""

from __future__ import annotations

import itertools
import os

import pytest

from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.release import Answer
from tests.privacy.ledger_helpers import BUDGET, release, reserve

KEYS = LedgerKeys.generate()


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "state", KEYS, BUDGET) as ledger:
        yield ledger


def test_sync_of_one_page(benchmark, tmp_path):
    """The floor under every durable spend: 4 KiB written and synced, nothing else."""
    descriptor = os.open(tmp_path / "page", os.O_RDWR | os.O_CREAT, 0o600)
    page, offsets = os.urandom(4096), itertools.count(0, 4096)

    def write_and_sync():
        os.pwrite(descriptor, page, next(offsets))
        os.fsync(descriptor)

    benchmark.pedantic(write_and_sync, rounds=500, warmup_rounds=20)
    os.close(descriptor)


def test_reserve(benchmark, ledger):
    """On the path of every release: we want a durable spend within 1 ms (median)."""
    epochs = itertools.count()
    benchmark.pedantic(lambda: reserve(ledger, f"epoch {next(epochs)}", 1), rounds=500, warmup_rounds=20)
    assert ledger.status().spent.pure_micro_epsilon == 520


def test_reserve_again(benchmark, ledger):
    """A retry writes nothing, so it should cost less than a sync."""
    reserve(ledger, "epoch 1")
    benchmark.pedantic(lambda: reserve(ledger, "epoch 1"), rounds=500, warmup_rounds=20)
    assert ledger.status().sequence == 1


@pytest.mark.parametrize("num_bytes", [500, 5_000_000])
def test_settle(benchmark, ledger, num_bytes):
    """A histogram's answer costs a sync; a model's update is sealed and written about as fast as the disk takes it."""
    payload, epochs = os.urandom(num_bytes), itertools.count()

    def reserved():
        return (reserve(ledger, f"epoch {next(epochs)}", 1), Answer(payload)), {}

    rounds = 300 if num_bytes < 10_000 else 10
    last = benchmark.pedantic(ledger.settle, setup=reserved, rounds=rounds)
    assert last.payload == payload


def test_stored(benchmark, ledger):
    """Reading a 5 MB answer back, for a retry."""
    payload = os.urandom(5_000_000)
    reservation = reserve(ledger, "epoch 1")
    ledger.settle(reservation, Answer(payload))
    assert benchmark.pedantic(lambda: ledger.stored(reservation), rounds=10).payload == payload


@pytest.fixture(scope="module")
def years_of_use(tmp_path_factory):
    """5 000 entries."""
    directory = tmp_path_factory.mktemp("years")
    with Ledger.open(directory, KEYS, BUDGET) as ledger:
        for number in range(2_500):
            ledger.forget_answer(release(ledger, f"epoch {number}", micro_epsilon=1).request)
    return directory


def test_open_verifies_five_thousand_entries(benchmark, years_of_use):
    """At the start of an app: we want a ledger of 5 000 entries verified within half a second."""

    def open_and_close():
        with Ledger.open(years_of_use, KEYS) as ledger:
            return ledger.status().sequence

    assert benchmark.pedantic(open_and_close, rounds=10) == 5_000
