"""`covey server run` as an operator meets it: how it ends, what it can be told, what it will not start with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import CheckIn, Task
from server_kit.daemon.child import not_before_heeded
from server_kit.store.protocol import FoldState, TaskState
from tests.server_kit.daemon.real_daemon import RealDaemon, wait_until
from tests.server_kit.daemon.scripted_fleet import Fleet, ScriptedDevice

pytestmark = pytest.mark.integration

LATE = "a process has not stopped in time and is killed"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path / "federation", tmp_path / "log") as daemon:
        yield daemon


def events(daemon: RealDaemon) -> list[dict[str, object]]:
    return [json.loads(line) for line in daemon.said().splitlines() if line.startswith("{")]


def wait_for_event(daemon: RealDaemon, event: str, **fields: object) -> None:
    def happened() -> bool:
        return any(each["event"] == event and each.items() >= fields.items() for each in events(daemon))

    wait_until(lambda: happened() or daemon.process is None or daemon.process.poll() is not None, event)
    assert happened(), daemon.said()


def test_a_daemon_obeys_reloads_revokes_and_ends_in_good_order(daemon):
    daemon.run()
    fleet = Fleet(daemon, daemon.address)
    fleet.begin(3)
    wait_until(lambda: len(fleet.thanked) >= 6, "six updates")
    revoking(daemon)
    reloading(daemon)
    ending(daemon, fleet)


def revoking(daemon: RealDaemon) -> None:
    """What `covey server revoke` says shows in an open stream and at the next call, without a restart."""
    unwanted = daemon.device()
    with unwanted.channel() as channel, channel.attend() as session:
        done = daemon.covey("revoke", unwanted.id)
        assert done.returncode == 0, done.stderr
        with pytest.raises(Refused, match="revoked"):
            session.receive(30)
        with pytest.raises(Refused, match="revoked"):
            channel.attend()
    wait_until(lambda: daemon.store.refusals().get("revoked", 0) >= 1, "the count of the refusal")
    status = daemon.covey("status", "--json")
    assert json.loads(status.stdout)["refusals"]["revoked"] >= 1


def reloading(daemon: RealDaemon) -> None:
    """SIGHUP takes over what may change, and says what may not."""
    assert daemon.process is not None
    daemon.write_settings("debug", more="\n[guards]\nmost_upload_bytes = 12345678\n")
    os.kill(daemon.process.pid, signal.SIGHUP)
    wait_for_event(daemon, "settings were read again", changed="log.level")
    refused = "this setting cannot change while the server runs; restart it"
    wait_for_event(daemon, refused, setting="guards.most_upload_bytes")
    daemon.write_settings("nonsense")
    os.kill(daemon.process.pid, signal.SIGHUP)
    for process in ("supervisor", "coordinator", "worker-0", "observer"):
        wait_for_event(daemon, "settings were not read again", process=process)
    daemon.write_settings("info")


def ending(daemon: RealDaemon, fleet: Fleet) -> None:
    """SIGTERM: within ten seconds all is put away and nothing runs any more; the next daemon goes on."""
    assert daemon.process is not None
    daemon.process.terminate()
    assert daemon.wait() == 0
    assert LATE not in daemon.said(), "whoever takes longer than the grace is killed"
    assert not daemon.pids()
    thanked = {header.task for header in fleet.thanked.values()}
    states = {task.state for name in thanked if (task := daemon.store.task(name)) is not None}
    assert states <= {TaskState.ARRIVED, TaskState.FOLDED, TaskState.LATE}
    before = daemon.store.cohorts()[0].version
    daemon.run()
    wait_until(lambda: daemon.store.cohorts()[0].version > before + 1, "more models")
    fleet.end()
    wait_until(lambda: not daemon.store.tasks(None, TaskState.ARRIVED), "the folding of what has arrived")
    wait_until(lambda: not daemon.store.folds(FoldState.DONE), "the digestion of the last step")


def test_a_second_signal_ends_a_daemon_at_once(daemon):
    daemon.run()
    wait_until(daemon.is_open, "an open gateway")
    worker = daemon.pids("worker_process") or daemon.pids("coordinator_process")
    # One that does not listen to the first.
    os.kill(worker[0], signal.SIGSTOP)
    assert daemon.process is not None
    daemon.process.terminate()
    wait_until(lambda: len(daemon.pids()) < 4 or daemon.process is None, "the first to leave")
    daemon.process.terminate()
    assert daemon.wait() == 0
    assert LATE in daemon.said()
    assert not daemon.pids()


@pytest.mark.parametrize("door", ["gateway", "status"])
def test_a_port_that_is_taken_ends_the_start_with_one_sentence(daemon, door):
    port = daemon.ports[0 if door == "gateway" else 2]
    with socket.create_server(("127.0.0.1", port)):
        daemon.run()
        assert daemon.wait() == 1
    assert f"[listen] {door}: 127.0.0.1:{port}" in errors(daemon)


_IMPORTING = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored, and that is inherited
print("importing", flush=True)
sys.stdin.readline()
signal.signal(signal.SIGHUP, lambda *_: print("heard", flush=True))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
sys.stdin.readline()
"""


@pytest.mark.parametrize("carefully", [True, False])
def test_a_signal_waits_until_a_process_listens(carefully):
    with not_before_heeded() if carefully else nullcontext():
        child = subprocess.Popen(
            [sys.executable, "-c", _IMPORTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "importing\n"
        child.send_signal(signal.SIGHUP)
        if not carefully:
            assert child.wait(60) == -signal.SIGHUP
            return
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "heard\n"
        child.stdin.close()
        assert child.wait(60) == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGHUP}


def test_a_broken_file_ends_the_start_with_one_sentence(daemon):
    daemon.write_settings(more="\n[gaurds]\n")
    daemon.run()
    assert daemon.wait() == 1
    assert "gaurds" in sentence(daemon)


def test_terms_beyond_the_policy_end_the_start_with_one_sentence(daemon):
    text = (daemon.directory / "server.toml").read_text()
    (daemon.directory / "server.toml").write_text(text.replace("epsilon = 10000.0", "epsilon = 0.001"))
    daemon.run()
    assert daemon.wait() == 1
    assert "[policy]" in sentence(daemon)


def sentence(daemon: RealDaemon) -> str:
    """What a start that failed before any process began has said."""
    (line,) = [line for line in daemon.said().splitlines() if line.startswith("covey: ")]
    assert "Traceback" not in daemon.said()
    assert not daemon.pids()
    return line


def errors(daemon: RealDaemon) -> str:
    """The one error that the log tells; nothing was tried again."""
    found = [str(each["event"]) for each in events(daemon) if each["level"] == "error"]
    assert len(found) == 1, daemon.said()
    assert not any(each["event"] == "a process ended and is started again" for each in events(daemon))
    assert not daemon.pids()
    return found[0]


def test_a_task_is_given_again_by_the_next_daemon(daemon):
    daemon.run()
    devices = [ScriptedDevice(Fleet(daemon, daemon.address), daemon.device()) for _ in range(2)]
    tasks = [asked(each) for each in devices]
    daemon.kill_group()
    daemon.run()
    assert [asked(each) for each in devices] == tasks


def asked(scripted: ScriptedDevice) -> Task:
    """The task that a device is given when it checks in."""
    scripted.device.gateway = scripted.fleet.gateway
    with scripted.device.channel() as channel, channel.attend() as session:
        session.check_in(CheckIn())
        task = session.receive(60)
        assert isinstance(task, Task)
        return task
