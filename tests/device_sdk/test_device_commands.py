"""What `covey device` owes a person at a terminal: no keys in core dumps, a passphrase without fuss, a clear status."""

from __future__ import annotations

import os
import pty
import re
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import covey
from device_sdk import cli
from device_sdk.device import DeviceStatus
from device_sdk.identity import Standing
from device_sdk.round_record import Phase
from privacy.budget import PrivacyBudget
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from tests.architecture.repository import ROOT

PASSPHRASE = "correct horse battery"
SETTINGS = """server = "fl.example.com:8444"
[budget]
epsilon = 8
delta = 1e-6
[keys]
store = "passphrase"
"""


@pytest.fixture
def known(tmp_path):
    """The state of a device that was enrolled with a passphrase, as far as these commands look at it."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "device.toml").write_text(SETTINGS)
    return state


def run(*words, given="", **settings):
    """`covey device ...` without a terminal."""
    command = [sys.executable, "-m", "covey", "device", *map(str, words)]
    return subprocess.run(
        command, input=given, cwd=ROOT, capture_output=True, text=True, start_new_session=True, timeout=60, **settings
    )


def run_on_terminal(words, answers):
    """The same on a terminal of its own; what the screen shows at the end."""
    terminal, far_end = pty.openpty()
    command = [sys.executable, "-m", "covey", "device", *map(str, words)]
    with subprocess.Popen(command, stdin=far_end, stdout=far_end, stderr=far_end, cwd=ROOT, start_new_session=True):
        os.close(far_end)
        screen = b""
        for question, answer in answers:
            while question.encode() not in screen.rpartition(b"\n")[2]:
                screen += os.read(terminal, 1024)
            os.write(terminal, f"{answer}\n".encode())
        with suppress(OSError):  # Linux's way to say that the other end is closed
            while more := os.read(terminal, 1024):
                screen += more
    os.close(terminal)
    return screen.decode()


def test_no_core_dump_could_hold_keys():
    script = (
        "import resource, covey; hard = resource.getrlimit(resource.RLIMIT_CORE)[1];"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard));"
        "covey.run(covey.covey, ['device', 'status', '--state', 'nowhere']);"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "0\n"


def test_a_machine_without_limits_would_dump_core():
    """The twin: a command of another group leaves the limit as it was."""
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    covey.run(covey.covey, ["privacy", "status", "nowhere"])
    assert resource.getrlimit(resource.RLIMIT_CORE) == limits


def test_without_a_terminal_the_passphrase_is_the_first_line_of_the_input(known):
    first = run("status", "--state", known, given=f"{PASSPHRASE}\nmore")
    assert (first.returncode, first.stderr) == (0, "")
    assert "not enrolled" in first.stdout
    wrong = run("status", "--state", known, given="correct horse bat\n")
    assert wrong.returncode == 1
    assert re.fullmatch(r"covey: this key or passphrase does not open the vault.*\n", wrong.stderr)


def test_no_passphrase_is_one_sentence(known):
    finished = run("status", "--state", known)
    assert finished.returncode == 1
    assert finished.stderr == "covey: stopped without an answer to a question; nothing further was done\n"


def test_on_a_terminal_a_known_passphrase_is_asked_for_once_and_not_shown(known):
    run("status", "--state", known, given=f"{PASSPHRASE}\n")
    screen = run_on_terminal(["status", "--state", known], [("Passphrase:", PASSPHRASE)])
    assert "not enrolled" in screen
    assert PASSPHRASE not in screen


def test_a_new_passphrase_is_asked_for_twice(tmp_path):
    words = ["enrol", "--server", "127.0.0.1:1", "--invitation", "covey1-cut", "--state", tmp_path / "state"]
    answers = [("Passphrase:", PASSPHRASE), ("Repeat", "correct horse bat"), ("Passphrase:", PASSPHRASE)]
    screen = run_on_terminal([*words, "--key-store", "passphrase"], [*answers, ("Repeat", PASSPHRASE)])
    assert "do not match" in screen
    assert "this invitation is cut or mistyped" in screen


def test_status_has_words_for_every_standing_and_phase():
    assert set(cli._STANDINGS) == {standing.value for standing in Standing}
    assert set(cli._PHASES) == {phase.value for phase in Phase}


def test_status_says_what_is_in_progress(tmp_path):
    with Ledger.open(tmp_path, LedgerKeys.generate(), PrivacyBudget(epsilon=8, delta=1e-6)) as ledger:
        found = DeviceStatus("h:1", Standing.ENROLLED, "d" * 32, {"released": 2, "accepted": 1}, ledger.status())
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in cli._text(found, Path("my state")).splitlines())
    assert lines["rounds"] == "1 to be done, 2 to be sent"
    assert lines["standing"] == "enrolled"
    assert lines["name there"] == "d" * 32
    assert lines["spent"] == "see covey privacy status 'my state'"


def test_verbose_shows_events_with_their_time():
    script = "import sys; from device_sdk import events; events.show_events(sys.stderr); events.emit('vault_salvaged')"
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:,]+ device_sdk WARNING vault_salvaged \{\}\n", finished.stderr)
