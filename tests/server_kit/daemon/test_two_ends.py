"""Server and device as people start them: two programs that share nothing but a wire, from enrolment to leaving."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from privacy.budget import PrivacyUnit
from privacy.ledger.entries import Released, Reserved
from privacy.mechanisms import VotedChoice
from privacy.receipts import receipts_from_lines
from server_kit.daemon.federation_home import Home
from tests.device_sdk.runtime.federation import entries_of
from tests.server_kit.daemon.real_daemon import ROOT, free_ports, wait_until

pytestmark = pytest.mark.integration

ROUNDS = 3
_APP = """\
import numpy as np
from sklearn.datasets import load_digits

from device_sdk import Device, PrivacyBudget
from device_sdk.trainers import NumpyTrainer

IMAGES, LABELS = load_digits(return_X_y=True)


def make():
    return NumpyTrainer((IMAGES[:400] / 16).astype(np.float32), LABELS[:400])


def share(server, level):
    budget, keys = PrivacyBudget(epsilon=8, delta=1e-6, training=level), {"store": "file", "file": "state.key"}
    with Device.open("state", server=server, budget=budget, keys=keys) as device:
        assert device.share_label_histogram(LABELS[:400], num_labels=10, epsilon=1, timeout_seconds=60)
"""
_NOISE = {"device": "noise_multiplier = '8'", "record": "noise_multiplier = '2'"}


def covey(folder: Path, *words: object, heard: str | None = None) -> str:
    """What a command prints, told something on its standard input."""
    command = [sys.executable, "-m", "covey", *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=_environment(), input=heard, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


_AUXO = 'preset = "auxo"\nparticipants = 1'
_IFCA = 'preset = "ifca"\nparticipants = 2\noverrides = { formation = { models = 2 } }'


@contextmanager
def running(folder: Path, level: str, federation: str = _AUXO) -> Iterator[str]:
    """A federation, by default of one device whose server tells how updates fit; where it enrols."""
    covey(folder, "server", "init", "federation", "--level", level)
    enrolment, gateway, status = free_ports(3)
    settings = f"""
[federation]
{federation}
[privacy]
level = "{level}"
{_NOISE[level]}
[evaluation]
every = 0
[listen]
enrolment = "127.0.0.1:{enrolment}"
gateway = "127.0.0.1:{gateway}"
status = "127.0.0.1:{status}"
"""
    (folder / "federation" / "server.toml").write_text(settings)
    command = [sys.executable, "-m", "covey", "server", "run", "federation"]
    log = folder / "server.log"
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=folder, env=_environment(), stdout=file, stderr=file) as daemon,
    ):
        try:
            wait_until(lambda: "devices can connect" in log.read_text() or daemon.poll() is not None, "an open gateway")
            yield f"localhost:{enrolment}"
        finally:
            daemon.send_signal(signal.SIGTERM)
    assert daemon.returncode == 0, log.read_text()


def enrol(folder: Path, server: str, state: str, level: str) -> None:
    invitation = covey(folder, "server", "invite", "federation").splitlines()[0]
    keys = ("--key-store", "file", "--key-file", f"{state}.key")
    where = ("--server", server, "--invitation", "-", "--state", state, "--training", level)
    covey(folder, "device", "enrol", *where, *keys, heard=invitation)


@pytest.mark.parametrize("level", ["device", "record"])
def test_enrol_share_train_learn_and_leave_and_both_books_agree(tmp_path: Path, level: str) -> None:
    (tmp_path / "app.py").write_text(_APP)
    with running(tmp_path, level) as server:
        enrol(tmp_path, server, "state", level)
        share = f"import app; app.share({server!r}, {level!r})"
        subprocess.run([sys.executable, "-c", share], cwd=tmp_path, env=_environment(), check=True, timeout=180)
        told = covey(tmp_path, "device", "run", "--state", "state", "--trainer", "app:make", "--rounds", ROUNDS)
        assert "sent 3 updates" in told
        status = json.loads(covey(tmp_path, "device", "status", "--state", "state", "--json"))
        assert status["rounds"] == {}, "a round ends when the device has heard how its update fitted"
        covey(tmp_path, "device", "leave", "--state", "state")
        covey(tmp_path, "server", "receipts", "federation", "-o", "receipts.jsonl")
    events = entries_of(tmp_path / "state")
    released = [event.payload_hash for event in events if isinstance(event, Released)]
    received = receipts_from_lines((tmp_path / "receipts.jsonl").read_text().splitlines())
    assert released == [each.payload_hash for each in received]
    assert len(set(released)) == ROUNDS + 1 == sum(isinstance(event, Reserved) for event in events)
    report = covey(tmp_path, "privacy", "report", "state", "--receipts", "receipts.jsonl", "-o", "report.html")
    assert "4 receipts match" in report


def test_records_vote_on_two_devices_their_ledgers_have_it_and_the_server_takes_the_answers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_APP)
    states = ("one", "two")
    with running(tmp_path, "record", _IFCA) as server:
        for state in states:
            enrol(tmp_path, server, state, "record")
        run = ("device", "run", "--trainer", "app:make", "--rounds", ROUNDS, "--state")
        with ThreadPoolExecutor() as pool:
            told = list(pool.map(lambda state: covey(tmp_path, *run, state), states))
        assert all("sent 3 updates" in each for each in told)
        covey(tmp_path, "server", "receipts", "federation", "-o", "receipts.jsonl")
    store = Home.open(tmp_path / "federation").open_store()
    answers = {record.device: record.payload for record in store.summaries("voted_choice")}
    store.close()
    assert len(answers) == 2
    released = 0
    for state in states:
        booked = [event for event in entries_of(tmp_path / state) if isinstance(event, Reserved)]
        voted = [event for event in booked if event.mechanism == "voted_choice"]
        assert {(event.purpose, event.cost.unit) for event in voted} == {("question", PrivacyUnit.RECORD)}
        assert {event.mechanism for event in booked} == {"voted_choice", "dp_sgd"}
        explained = covey(tmp_path, "privacy", "explain", state)
        assert f"{len(voted)} voted choice" in explained
        assert "each record had one vote" in explained
        released += len(booked)
    report = covey(tmp_path, "privacy", "report", *states, "--receipts", "receipts.jsonl", "-o", "report.html")
    assert f"{released} receipts match" in report
    assert set(map(VotedChoice(2, "0.25").decode, answers.values())) <= {0, 1}
