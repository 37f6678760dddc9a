"""Whoever races for the last of the budget, in threads or processes: one gets it, and equal requests are one."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from privacy.budget import MICRO
from privacy.errors import BudgetExhausted, LedgerUnavailable
from privacy.ledger import Ledger
from privacy.ledger.entries import Reserved
from tests.privacy.ledger_helpers import BUDGET, release, reserve
from tests.privacy.ledger_racers import LAST_UNIT, NUM_RACERS, NUM_RELEASES

pytestmark = pytest.mark.integration
NUM_THREADS = 32
ROOT = Path(__file__).parents[2]


def in_processes(kind, directory, keys, tmp_path):
    """The outcomes of a race of processes (tests/privacy/ledger_racers.py)."""
    key_file = tmp_path / "keys"
    key_file.touch(mode=0o600)
    key_file.write_bytes(keys.to_bytes())
    command = [sys.executable, "-m", "tests.privacy.ledger_racers", kind, directory, key_file]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    outcomes = sorted(finished.stdout.split())
    assert len(outcomes) == NUM_RACERS
    return outcomes


@pytest.fixture
def almost_spent(tmp_path, ledger_keys):
    with Ledger.open(tmp_path / "state", ledger_keys, BUDGET) as ledger:
        reserve(ledger, "most of it", 2 * MICRO - LAST_UNIT)
    return tmp_path / "state"


def test_of_eight_processes_one_gets_the_last_unit(almost_spent, ledger_keys, tmp_path):
    outcomes = in_processes("last unit", almost_spent, ledger_keys, tmp_path)
    assert outcomes == ["booked"] + ["exhausted"] * (NUM_RACERS - 1)
    with Ledger.open(almost_spent, ledger_keys) as ledger:
        assert ledger.status().left.pure_micro_epsilon == 0


def test_same_request_from_eight_processes_is_one_spend_and_one_answer(ledger_keys, tmp_path):
    payloads = in_processes("same", tmp_path / "state", ledger_keys, tmp_path)
    assert len(set(payloads)) == 1
    with Ledger.open(tmp_path / "state", ledger_keys) as ledger:
        assert [entry.event.kind for entry in ledger.entries()] == ["open", "reserve", "release"]


def test_many_writers_make_one_chain(ledger_keys, tmp_path):
    in_processes("many", tmp_path / "state", ledger_keys, tmp_path)
    with Ledger.open(tmp_path / "state", ledger_keys) as ledger:
        booked = [entry for entry in ledger.entries() if isinstance(entry.event, Reserved)]
        assert len(booked) == NUM_RACERS * NUM_RELEASES
        assert ledger.verify().num_entries == 1 + 2 * len(booked)


def in_threads(attempt):
    """The outcomes of `attempt` in many threads that were let go at the same moment."""
    start, outcomes = threading.Barrier(NUM_THREADS), []

    def racer(number):
        start.wait()
        try:
            attempt(number)
            outcomes.append("booked")
        except BudgetExhausted:
            outcomes.append("exhausted")

    threads = [threading.Thread(target=racer, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(outcomes)


def test_of_many_threads_one_gets_the_last_unit(almost_spent, ledger_keys):
    with Ledger.open(almost_spent, ledger_keys) as ledger:
        outcomes = in_threads(lambda number: reserve(ledger, f"racer {number}", LAST_UNIT))
        ledger.verify()
    assert outcomes == ["booked"] + ["exhausted"] * (NUM_THREADS - 1)


class LooksThenBooks:
    """The broken twin: checks what is left before it locks."""

    def __init__(self, left):
        self.left = left
        self.everyone_has_looked = threading.Barrier(NUM_THREADS)

    def reserve(self, number):
        left = self.left
        self.everyone_has_looked.wait()
        if left < LAST_UNIT:
            raise BudgetExhausted("nothing is left")
        self.left -= LAST_UNIT


def test_race_catches_a_ledger_that_looks_before_it_locks():
    assert in_threads(LooksThenBooks(LAST_UNIT).reserve) == ["booked"] * NUM_THREADS


def test_two_open_ledgers_in_one_process_follow_each_other(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as one, Ledger.open(tmp_path, ledger_keys) as other:
        for number in range(3):
            first = release(one, f"one {number}")
            assert other.stored(reserve(other, f"one {number}")) == first
            release(other, f"other {number}")
        assert one.status() == other.status()
        assert one.verify() == other.verify()


FORKED = """
import os, sys
from pathlib import Path
from privacy.errors import LedgerUnavailable
from tests.privacy.ledger_helpers import BUDGET, Ledger, LedgerKeys, reserve
with Ledger.open(Path(sys.argv[1]), LedgerKeys.generate(), BUDGET) as ledger:
    child = os.fork()
    if child == 0:
        try:
            reserve(ledger, "in the child")
        except LedgerUnavailable as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    reserve(ledger, "in the parent")
sys.exit(ended)
"""


def test_ledger_is_not_used_across_a_fork(tmp_path):
    assert subprocess.run([sys.executable, "-c", FORKED, tmp_path], cwd=ROOT).returncode == 7


HOLDER = """
import sys, time
from pathlib import Path
from privacy.ledger.files import LedgerFiles
with LedgerFiles(Path(sys.argv[1]), timeout_seconds=1).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_lock_that_is_never_given_back_is_an_error_and_not_a_wait_for_ever(tmp_path, ledger_keys):
    Ledger.open(tmp_path, ledger_keys, BUDGET).close()
    with Ledger.open(tmp_path, ledger_keys, lock_timeout_seconds=0.2) as ledger:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, cwd=ROOT)
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(LedgerUnavailable, match=r"held the ledger for 0\.2 s.*nothing was booked"):
            reserve(ledger, "epoch 1")
        assert ledger.status().sequence == 0
        holder.kill()
        holder.communicate()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                reserve(ledger, "epoch 1")
                break
            except LedgerUnavailable:
                pass
        assert ledger.status().sequence == 1
