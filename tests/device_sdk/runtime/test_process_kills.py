"""A device is killed while it talks to a real gateway: every restart goes on, and nothing is paid or counted twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.architecture.repository import ROOT
from tests.device_sdk.runtime.federation import DEVICE_LEVEL, check_reconciled, no_weights, started
from tests.device_sdk.runtime.process import opened

pytestmark = pytest.mark.integration
ROUNDS = 1000  # more than there will be


@pytest.fixture
def federation(tmp_path):
    cheap = replace(DEVICE_LEVEL, noise_multiplier="800")  # the budget must outlast the kills
    federation = started(tmp_path, no_weights(2, 3), terms=cheap, rounds=10**6)
    yield federation
    federation.server.close()


def begun(federation, home, rounds):
    server = str(federation.server.enrolment_address)
    command = [sys.executable, "-m", "tests.device_sdk.runtime.process", str(home), server, str(rounds)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # it is open, so the kill meets a round and not an import
    return process


def kill_again_and_again(federation, home, kills, seed):
    """Kill the device at random moments; then let it end one more round, and look at everything."""
    chance = random.Random(seed)
    with opened(home, str(federation.server.enrolment_address)) as device:
        device.enrol(federation.server.invitation().to_text())
    for _ in range(kills):
        process = begun(federation, home, ROUNDS)
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        process.communicate()
    before = len(federation.updates)
    last = begun(federation, home, 2)  # the first may be one that was counted, and killed before it was noted
    last.communicate()
    assert last.returncode == 0
    assert len(federation.updates) > before
    federation.server.desk.wait_for(lambda desk: desk.departures)
    with opened(home, str(federation.server.enrolment_address)) as device:
        assert set(device.status().rounds) <= {"uploaded"}  # their feedback was lost with a stream
    check_reconciled(federation, home / "state")
    tasks = [header.task for header, _ in federation.updates]
    assert len(tasks) == len(set(tasks))


def test_killed_at_random_moments_a_device_goes_on(federation, tmp_path):
    kill_again_and_again(federation, tmp_path, kills=4, seed=1)


@pytest.mark.stress
def test_killed_two_hundred_times_a_device_goes_on(federation, tmp_path):
    kill_again_and_again(federation, tmp_path, kills=200, seed=2)
