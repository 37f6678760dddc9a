"""A real daemon, an honest pair of devices beside it, and what must be true of it whatever others send."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk import Device, PrivacyBudget
from device_sdk.trainers import NumpyTrainer
from privacy.budget import PrivacyUnit
from server_kit import Server
from server_kit.daemon.federation_home import Home
from server_kit.snapshots import read_snapshots
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.real_daemon import RealDaemon, free_ports, wait_until

PAGES = ("/metrics", "/healthz", "/api/overview", "/api/devices", "/api/privacy", "/api/health")
COMMANDS = ("status", "devices", "cohorts", "check")
_SETTINGS = """\
[federation]
name = "hostile"
preset = "{preset}"
participants = 2
deadline_seconds = 5.0

[training]
steps = 2

[policy]
epsilon = 100000.0

[listen]
gateway = "127.0.0.1:{ports[0]}"
enrolment = "127.0.0.1:{ports[1]}"
status = "127.0.0.1:{ports[2]}"
{more}
"""


class Living(RealDaemon):
    """`covey server run` of an ordinary federation at level record. Use it as a context manager."""

    def __init__(self, folder: Path, preset: str = "covey", more: str = "") -> None:
        self._text = _SETTINGS.format(preset=preset, ports=(ports := free_ports(3)), more=more)
        super().__init__(folder / "federation", folder / "log.txt", ports=ports)

    def write_settings(self, level: str = "info", *, create: bool = False, more: str = "") -> None:
        del level, more
        assert create
        self.home = Home.create(self.directory, self._text)

    def begun(self) -> Living:
        """Once devices can come."""
        self.run()
        wait_until(lambda: self.is_open() and "coordinator" in self.living(), "the daemon's start")
        return self

    def living(self) -> dict[str, int]:
        """The processes by name."""
        return {each.process: each.pid for each in read_snapshots(self.home.run)}

    def stranger(self) -> TestDevice:
        """One that enrolled, with keys of its own."""
        return self.device()

    def page(self, path: str) -> int:
        token = self.home.secrets.read("dashboard.token").decode().strip() if self._has_token() else ""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[2]}{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
            return int(answer.status)

    def _has_token(self) -> bool:
        return (self.directory / "secrets" / "dashboard.token").exists()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said().splitlines() if line.startswith("{")]

    def faults(self) -> list[dict[str, Any]]:
        """What the log says that no device may cause."""
        return [each for each in self.events() if str(each.get("level")).lower() in ("error", "critical")]

    def answers_everybody(self) -> None:
        """Pages, metrics and commands work."""
        assert {path: self.page(path) for path in PAGES} == dict.fromkeys(PAGES, 200)
        done = {name: self.covey(name) for name in COMMANDS}
        assert {name: each.returncode for name, each in done.items()} == dict.fromkeys(COMMANDS, 0), {
            name: each.stderr for name, each in done.items()
        }

    def rounds(self) -> int:
        return max((each.round for each in self.store.all_cohorts()), default=0)


class HonestPair:
    """Two devices of the SDK that take part until they are stopped."""

    def __init__(self, daemon: Living, folder: Path) -> None:
        invitations = Server.open(daemon.directory).invite(2)
        budget = PrivacyBudget(epsilon=100_000, delta=1e-6, training=PrivacyUnit.RECORD)
        rng = np.random.default_rng(0)
        self._devices = []
        self._trainer = NumpyTrainer(rng.random((40, 64), dtype=np.float32), rng.integers(10, size=40))
        for number, invitation in enumerate(invitations):
            keys = {"store": "file", "file": folder / f"honest-{number}.key"}
            server = str(daemon.home.config.listen.enrolment_address)
            device = Device.open(folder / f"honest-{number}", server=server, budget=budget, keys=keys)
            device.enrol(invitation, timeout_seconds=60)
            self._devices.append(device)
        self._runs = [device.start(self._trainer) for device in self._devices]

    def close(self) -> None:
        for device in self._devices:
            device.close()


@contextmanager
def honest_pair(daemon: Living, folder: Path) -> Iterator[HonestPair]:
    pair = HonestPair(daemon, folder)
    try:
        yield pair
    finally:
        pair.close()


def go_on(daemon: Living, rounds: int = 2, seconds: float = 90.0) -> None:
    """So many further rounds come to their end."""
    begun = daemon.rounds()
    wait_until(lambda: daemon.rounds() >= begun + rounds, f"{rounds} rounds more", seconds)


@contextmanager
def peak_of(daemon: Living, process: str) -> Iterator[list[int]]:
    """The most memory that a process holds meanwhile, beyond what it held before, in bytes; known at the end."""
    pid, grown, ended = daemon.living()[process], [0], threading.Event()
    before = _resident(pid)

    def watch() -> None:
        while not ended.wait(0.02):
            grown[0] = max(grown[0], _resident(pid) - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield grown
    finally:
        ended.set()
        thread.join()


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
