"""A process of the server that hangs is killed and started again, and devices get on; one that slept is left alone."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from server_kit.daemon.dashboard_token import read_token
from server_kit.daemon.heartbeat import Heartbeat, beat_into
from tests.server_kit.daemon.real_daemon import RealDaemon, wait_until
from tests.server_kit.daemon.scripted_fleet import Fleet

HUNG_SECONDS = 5.0
SECONDS = HUNG_SECONDS + 60.0
"""Until updates flow again: the silence, and a process that starts on a machine that is busy with other tests."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path / "federation", tmp_path / "log") as daemon:
        daemon.write_settings(more=f"\n[supervisor]\nhung_seconds = {HUNG_SECONDS}\n")
        yield daemon


@pytest.mark.integration
def test_whoever_is_stopped_is_replaced_and_updates_flow_again(daemon):
    daemon.run()
    fleet = Fleet(daemon, daemon.address)
    fleet.begin(3)
    wait_until(lambda: len(fleet.thanked) >= 6, "six updates")
    for part in ("worker_process", "coordinator_process"):
        (hung,) = daemon.pids(part)
        os.kill(hung, signal.SIGSTOP)
        wait_until(partial(is_gone, daemon, hung), f"the end of {part}", SECONDS)
        wait_until(partial(has_thanked, fleet, len(fleet.thanked) + 6), f"six updates without {part}", SECONDS)
    (hung,) = daemon.pids("server_kit.observer")
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: is_gone(daemon, hung) and observer_answers(daemon), "pages", SECONDS)
    said = daemon.said()
    assert said.count('"a process hangs and is killed"') == 3, said
    token = read_token(daemon.home.secrets)
    assert token is not None
    assert token not in said, "a journal keeps what is said"
    fleet.end()


def is_gone(daemon: RealDaemon, pid: int) -> bool:
    return pid not in daemon.pids()


def has_thanked(fleet: Fleet, times: int) -> bool:
    return len(fleet.thanked) >= times


def observer_answers(daemon: RealDaemon) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.ports[2]}/healthz", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@pytest.mark.integration
def test_a_supervisor_that_slept_kills_nobody(daemon):
    """All processes sleep, as with the machine; the supervisor wakes first."""
    daemon.run()
    wait_until(daemon.is_open, "the gateway")
    wait_until(lambda: len(daemon.pids("server_kit")) >= 3, "all processes")
    assert daemon.process is not None
    before, supervisor = daemon.pids("server_kit"), daemon.process.pid
    for pid in (supervisor, *before):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(HUNG_SECONDS + 3)
    os.kill(supervisor, signal.SIGCONT)
    time.sleep(2.0)
    for pid in before:
        os.kill(pid, signal.SIGCONT)
    time.sleep(HUNG_SECONDS)
    assert set(before) <= set(daemon.pids("server_kit"))
    assert "hangs" not in daemon.said()


class TestHeartbeat:
    """One pipe, and time that the test makes pass."""

    @pytest.fixture
    def heartbeat(self) -> Iterator[Heartbeat]:
        heartbeat = Heartbeat()
        yield heartbeat
        heartbeat.handed_over()
        heartbeat.close()

    def beat(self, heartbeat: Heartbeat) -> None:
        os.write(heartbeat.writing, b".")

    def test_silence_adds_up_and_a_beat_ends_it(self, heartbeat):
        self.beat(heartbeat)
        for _ in range(11):
            heartbeat.look(0.5)
        assert heartbeat.has_stopped(4.9)
        self.beat(heartbeat)
        heartbeat.look(0.5)
        assert not heartbeat.has_stopped(0.1)

    def test_time_in_which_nobody_looked_does_not_count(self, heartbeat):
        self.beat(heartbeat)
        heartbeat.look(0.5)
        heartbeat.look(8 * 3600.0)
        assert not heartbeat.has_stopped(5.0)

    def test_one_that_counts_all_time_would_kill_the_sleeping(self, heartbeat, monkeypatch):
        """The broken twin."""
        monkeypatch.setattr("server_kit.daemon.heartbeat._LONGEST_TICK_SECONDS", float("inf"))
        self.beat(heartbeat)
        heartbeat.look(0.5)
        heartbeat.look(8 * 3600.0)
        assert heartbeat.has_stopped(5.0)

    def test_one_that_starts_has_longer(self, heartbeat):
        for _ in range(20):
            heartbeat.look(0.5)
        assert not heartbeat.has_stopped(5.0)
        for _ in range(50):
            heartbeat.look(0.5)
        assert heartbeat.has_stopped(5.0)

    def test_the_other_end_beats_by_itself_and_never_waits(self, heartbeat):
        beat_into(os.dup(heartbeat.writing), every_seconds=0.0001)
        time.sleep(0.5)
        heartbeat.look(100.0)
        assert heartbeat.has_begun
        assert heartbeat.silent_seconds == 0.0
