"""Whenever a demo is interrupted, it ends with 130 and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from server_kit.demo.processes import Interrupts, Processes
from tests.server_kit.demo.demo_process import DemoProcess

MOMENTS = ["hold images", "making a federation", "starting the server", "inviting devices", "connected", "split of"]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)",
]


def interrupted_at(folder, words, number, *, everyone):
    demo = DemoProcess(folder, "--devices", "6", "--rounds", "30")
    try:
        demo.read_until(words)
        demo.interrupt(number, everyone=everyone)
        return demo.read_to_end(), demo.is_alone_gone(), demo.text
    finally:
        demo.clean_up()


@pytest.mark.integration
@pytest.mark.parametrize("words", ["making a federation", "inviting devices"])
def test_ctrl_c_stops_everything(tmp_path, words):
    code, gone, text = interrupted_at(tmp_path, words, signal.SIGINT, everyone=True)
    assert (code, gone) == (130, True), text
    assert "Traceback" not in text
    assert "stopped; nothing is left running" in text


@pytest.mark.integration
def test_a_demo_that_is_killed_takes_its_server_and_devices_along(tmp_path):
    code, gone, text = interrupted_at(tmp_path, "inviting devices", signal.SIGKILL, everyone=False)
    assert (code, gone) == (-signal.SIGKILL, True), text


@pytest.mark.stress
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", MOMENTS)
def test_a_signal_to_the_demo_alone_stops_everything(tmp_path, words, number):
    code, gone, text = interrupted_at(tmp_path, words, number, everyone=False)
    assert gone, text
    # Before it listens to signals itself, a demo ends as any process does, and has started nothing.
    assert code == 130 or (words == MOMENTS[0] and code == -number)


@pytest.fixture
def interrupts():
    with Interrupts() as found:
        yield found


def interrupted_while_starting(interrupts, processes):
    with interrupts.held():
        os.kill(os.getpid(), signal.SIGINT)
        processes.start("child", SLEEP)
    pytest.fail("the signal was forgotten")


def test_a_signal_while_a_process_is_started_waits_until_it_is_known(interrupts, tmp_path):
    with Processes(interrupts, tmp_path) as processes:
        with pytest.raises(KeyboardInterrupt):
            interrupted_while_starting(interrupts, processes)
        child = processes.started["child"]
        assert child.poll() is None
    assert child.poll() is not None


def test_a_signal_that_is_not_held_back_would_lose_the_process(interrupts):
    started, known = [], []

    def start():
        started.append(subprocess.Popen(SLEEP))
        os.kill(os.getpid(), signal.SIGINT)
        known.append(started[-1])

    with pytest.raises(KeyboardInterrupt):
        start()
    assert not known
    started[0].kill()
    started[0].wait()


def test_impatience_does_not_stop_the_stopping(interrupts, tmp_path, monkeypatch):
    monkeypatch.setattr("server_kit.demo.processes._PATIENCE_SECONDS", (0.2, 0.2))
    with Processes(interrupts, tmp_path) as processes:
        child = processes.start("stubborn", STUBBORN)
        while not processes.log("stubborn").read_bytes():
            pass
        monkeypatch.setattr(child, "terminate", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert child.poll() == -signal.SIGKILL


def test_a_tied_process_ends_with_the_one_that_started_it(tmp_path):
    code = (
        "import pathlib, signal, sys, time\n"
        "from server_kit.demo.processes import Interrupts, Processes\n"
        "with Interrupts() as interrupts, Processes(interrupts, pathlib.Path(sys.argv[1])) as processes:\n"
        "    device = [sys.executable, '-m', 'server_kit.demo.device_process', 'none', 'none']\n"
        "    print(processes.start('device', device, tied=True).pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline().strip().isdigit()
    parent.kill()
    parent.stdout.close()
    parent.wait()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.killpg(parent.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGKILL)
    pytest.fail("the device outlived the demo")
