"""A federation to be measured: `covey server run` in a folder of its own, and what its processes take."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from server_kit.daemon.federation_home import Home
from server_kit.server import Server
from server_kit.snapshots import read_snapshots

ROOT = Path(__file__).parents[2]
NUM_WEIGHTS = 7850  # softmax regression on 28 x 28 pixels, as in benchmarks.wire.rounds
_START_SECONDS = 120
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTINGS = """
[federation]
model = "benchmarks.daemon.federation:weights"
preset = "fedavg"
participants = {devices}
rounds = {rounds}
[privacy]
level = "device"
noise_multiplier = "1000"
[listen]
enrolment = "127.0.0.1:{enrolment}"
gateway = "127.0.0.1:{gateway}"
status = "127.0.0.1:{status}"
[evaluation]
every = 0
[log]
level = "warning"
"""


def weights():
    """The model: arrays, since nobody computes with it."""
    return {"w": np.zeros(NUM_WEIGHTS, np.float32)}


@dataclass(frozen=True)
class Usage:
    """What a process has taken so far."""

    processor_seconds: float
    resident_bytes: int


@dataclass(frozen=True)
class Federation:
    """A running daemon."""

    home: Home
    daemon: subprocess.Popen[bytes]

    def invitations(self, count):
        return Server(self.home).invite(count)

    def processes(self):
        """The process ids of the daemon by name."""
        named = {found.process: found.pid for found in read_snapshots(self.home.run)}
        return {"supervisor": self.daemon.pid, **named}

    def usage(self):
        return {name: usage(pid) for name, pid in sorted(self.processes().items())}

    def rounds(self):
        """What the store says of each round: when its model was begun, and how long devices took."""
        with closing(self.home.open_store()) as store:
            return [(each.at_seconds, each.facts["seconds"]) for each in store.happenings(kind="round", limit=1 << 20)]


@dataclass(frozen=True)
class Running:
    """A federation with its devices at work."""

    federation: Federation
    fleets: tuple[subprocess.Popen[str], ...]

    def wait_for(self, what: str) -> None:
        """Wait until every process of devices has said it."""
        assert all(_heard(process) == what for process in self.fleets)

    def processor_seconds(self) -> dict[str, float]:
        """By process; those of all devices together."""
        seconds = {name: usage.processor_seconds for name, usage in self.federation.usage().items()}
        return {**seconds, "devices": sum(usage(process.pid).processor_seconds for process in self.fleets)}


@contextmanager
def running(folder: Path, devices: int, rounds: int) -> Iterator[Federation]:
    """A new federation of so many devices, until the block ends."""
    enrolment, gateway, status = free_ports(3)
    settings = _SETTINGS.format(devices=devices, rounds=rounds, enrolment=enrolment, gateway=gateway, status=status)
    home = Home.create(folder / "federation", settings)
    command = [sys.executable, "-m", "covey", "server", "run", str(home.directory)]
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield _ready(Federation(home, daemon), folder / "daemon.log")
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def _ready(federation: Federation, log: Path) -> Federation:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and federation.daemon.poll() is None:
        found = {each.process: each for each in read_snapshots(federation.home.run)}
        if "worker-0" in found and "coordinator" in found and found["coordinator"].facts.get("listening"):
            return federation
        time.sleep(0.05)
    raise SystemExit(f"the daemon did not begin:\n{log.read_text()[-4000:]}")


@contextmanager
def taking_part(folder: Path, devices: int, rounds: int, warm_up: int, fleets: int = 1) -> Iterator[Running]:
    """A federation whose devices live in so many processes, from the moment when the first rounds are over."""
    with ExitStack() as stack:
        federation = stack.enter_context(running(folder, devices, warm_up + rounds))
        server = str(federation.home.config.listen.enrolment_address)
        processes = [stack.enter_context(_fleet(folder / f"fleet-{at}", server)) for at in range(fleets)]
        for at, process in enumerate(processes):
            invitations = federation.invitations(len(range(at, devices, fleets)))
            _tell(process, {"invitations": invitations, "warm_up": warm_up, "rounds": warm_up + rounds})
        started = Running(federation, tuple(processes))
        started.wait_for("enrolled")
        for process in processes:
            _tell(process, "begin")
        started.wait_for("warm")
        yield started


@contextmanager
def _fleet(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of devices (`benchmarks.daemon.fleet`), which is told and tells by lines of JSON."""
    command = [sys.executable, "-m", "benchmarks.daemon.fleet", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _tell(process, what):
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _heard(process):
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process of devices has ended; what it said stands above")
    return json.loads(line)


def heed_signals() -> None:
    """Let SIGTERM stop what was started, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def usage(pid: int) -> Usage:
    """Of one process, from the system."""
    folder = Path("/proc") / str(pid)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, resident)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
