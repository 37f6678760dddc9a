"""Deadlines pass whatever the system's clock is set to; so do leases that a clock far ahead has written down."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from device_sdk.wire.messages import CheckIn, Task
from server_kit import steady_clock
from server_kit.daemon.lifeline import LEASE_SECONDS, LeaseKeeper
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import Asking
from tests.server_kit.daemon.paper_server import PaperServer
from tests.server_kit.daemon.real_daemon import RealDaemon, wait_until
from tests.server_kit.daemon.scripted_fleet import Fleet

HOUR = 3600.0


def test_time_for_deadlines_does_not_follow_the_clock(monkeypatch):
    before, wall = steady_clock.steady_seconds(), time.time
    monkeypatch.setattr(time, "time", lambda: wall() - HOUR)
    assert 0 <= steady_clock.steady_seconds() - before < 60


def test_processes_that_share_it_read_the_same_time(monkeypatch):
    monkeypatch.setattr(steady_clock, "_difference_seconds", 0.0)
    assert steady_clock.steady_seconds() == pytest.approx(time.monotonic(), abs=1)
    steady_clock.share(1e9)
    assert steady_clock.steady_seconds() == pytest.approx(time.monotonic() + 1e9, abs=1)


def has_thanked(fleet: Fleet, times: int) -> bool:
    return len(fleet.thanked) >= times


class TestTheSystemsClock:
    """A daemon whose system clock is set while it runs; the monotonic clock goes on as it does on a real machine."""

    @pytest.fixture
    def wall(self, tmp_path: Path, monkeypatch) -> Path:
        """What the daemon's clock shows: write an offset into this file."""
        found = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
        if found is None or shutil.which("faketime") is None:
            pytest.skip("the system's clock was NOT set while a daemon ran: faketime is not installed")
        file = tmp_path / "offset"
        # Ahead of everyone from the beginning, so that certificates are valid wherever the clock is set to.
        file.write_text("+6h\n")
        monkeypatch.setenv("LD_PRELOAD", str(found))
        monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(file))
        monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
        monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        return file

    @pytest.fixture
    def daemon(self, tmp_path: Path) -> Iterator[RealDaemon]:
        with RealDaemon(tmp_path / "federation", tmp_path / "log", deadline_seconds=3.0) as daemon:
            yield daemon

    @pytest.mark.integration
    def test_a_round_with_a_silent_device_ends_though_the_clock_is_set_back_and_forth(self, wall, daemon):
        daemon.run()
        fleet = Fleet(daemon, daemon.address)
        fleet.begin(2)
        wait_until(lambda: len(fleet.thanked) >= 4, "four updates")
        silent = daemon.device()
        with silent.channel() as channel, channel.attend() as session:
            for offset in ("+5h", "+7h", "+4h"):
                session.check_in(CheckIn())
                wait_until(lambda: isinstance(session.receive(60), Task), "a task for the silent device")
                wall.write_text(f"{offset}\n")
                wait_until(partial(has_thanked, fleet, len(fleet.thanked) + 4), f"updates after {offset}", 40)
        fleet.end()


def test_a_round_that_was_opened_in_the_future_counts_from_the_restart_on(tmp_path):
    server = PaperServer(tmp_path, participants=2)
    try:
        for _ in range(2):
            server.device().check_in()
        server.turn()
        (opened,) = server.store.cohorts()
        assert opened.opened_at_seconds is not None
        ahead = replace(opened, opened_at_seconds=server.clock() + HOUR)
        server.store.ask(Asking((), [ahead]))
        server.restart_coordinator()
        (found,) = server.store.cohorts()
        assert found.opened_at_seconds == server.clock()
    finally:
        server.close()


class TestLeases:
    def keeper(self, store: MemoryStore, now: list[float]) -> LeaseKeeper:
        def wait(seconds: float) -> None:
            now[0] += seconds
            assert now[0] < 10 * LEASE_SECONDS, "it would wait for ever"

        return LeaseKeeper(store, "coordinator", lambda: now[0], wait, lambda: now[0])

    def test_one_whose_end_lies_far_ahead_and_that_nobody_renews_is_taken_over(self):
        store, now = MemoryStore(), [0.0]
        store.acquire("coordinator", "another machine", LEASE_SECONDS, HOUR)
        keeper = self.keeper(store, now)
        assert now[0] >= 2 * LEASE_SECONDS
        (held,) = store.held()
        assert (held.epoch, held.until_seconds <= now[0] + LEASE_SECONDS) == (2, True)
        keeper.close()

    def test_one_that_is_renewed_is_not(self):
        store, now = MemoryStore(), [0.0]
        other = store.acquire("coordinator", "another machine", LEASE_SECONDS, HOUR)
        assert other is not None
        renewed = [0]

        def wait(seconds: float) -> None:
            now[0] += seconds
            renewed[0] += 1
            if renewed[0] > 30:
                raise TimeoutError
            store.renew(other, LEASE_SECONDS, HOUR + now[0])

        with pytest.raises(TimeoutError):
            LeaseKeeper(store, "coordinator", lambda: now[0], wait, lambda: now[0])
        (held,) = store.held()
        assert held.holder == "another machine"
