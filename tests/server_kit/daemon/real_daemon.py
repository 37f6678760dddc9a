"""`covey server run` in processes of its own, for tests that kill them.

Its aggregator adds up, and each update is one step in a coordinate of its own: the model shows what was folded.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from server_kit.daemon.federation_home import Home
from server_kit.store.protocol import Store
from tests.device_sdk.wire.devices import TestDevice

ROOT = Path(__file__).parents[3]
COORDINATES = 1 << 15
STEP = 1 / 256
PATIENCE_SECONDS = 180.0
"""For a daemon that starts while the machine is busy with others; nothing waits so long for its own sake."""
_MODEL = f"""\
import numpy as np


def build():
    return {{"w": np.zeros({COORDINATES}, dtype=np.float32)}}
"""
_SETTINGS = """\
[federation]
name = "chaos"
model = "chaos_model:build"
preset = "fedavg"
participants = 4
begin_with = 2
deadline_seconds = {deadline}
overrides = {{ aggregator = {{ kind = "tests.server_kit.daemon.fault_parts:Sum" }} }}

[privacy]
level = "device"
noise_multiplier = "{noise}"
grid_bits = 8

[policy]
epsilon = 10000.0

[evaluation]
every = 0

[listen]
gateway = "127.0.0.1:{gateway}"
public_gateway = "{public_gateway}"
enrolment = "127.0.0.1:{enrolment}"
status = "127.0.0.1:{status}"

[log]
level = "{level}"
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)


@dataclass
class RealDaemon:
    """One federation and the daemon that runs it now. Use it as a context manager."""

    directory: Path
    log: Path
    noise: str = "4"
    deadline_seconds: float = 5.0
    public_gateway: str = ""
    """Where devices that enrol are sent to, if that is not the gateway itself."""
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] | None = None

    def __post_init__(self) -> None:
        self.write_settings(create=True)
        self.store: Store = self.home.open_store()
        self.authority = self.home.authority()
        self.register = self.store.register

    def write_settings(self, level: str = "info", *, create: bool = False, more: str = "") -> None:
        gateway, enrolment, status = self.ports
        text = _SETTINGS.format(
            gateway=gateway,
            enrolment=enrolment,
            status=status,
            level=level,
            noise=self.noise,
            deadline=self.deadline_seconds,
            public_gateway=self.public_gateway or self.address,
        )
        if create:
            self.home = Home.create(self.directory, text)
            (self.directory / "chaos_model.py").write_text(_MODEL)
        else:
            (self.directory / "server.toml").write_text(text + more)

    @property
    def address(self) -> str:
        """Of the gateway."""
        return f"127.0.0.1:{self.ports[0]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self.store.close()

    def run(self) -> None:
        """`covey server run`, in a process group of its own."""
        self._log = self.log.open("ab")
        command = [sys.executable, "-m", "covey", "server", "run", str(self.directory)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=self._log, stderr=self._log, start_new_session=True, env=_environment()
        )

    def said(self) -> str:
        return self.log.read_text()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        assert self.process is not None
        assert self._log is not None
        code = self.process.wait(seconds)
        self._log.close()
        return code

    def pids(self, part: str = "") -> list[int]:
        """The daemon's living processes whose command names this part."""
        entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return sorted(int(entry.name) for entry in entries if self._is_ours(entry, part))

    def _is_ours(self, entry: Path, part: str) -> bool:
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return False
        return str(self.directory) in words and any(part in word for word in words)

    def kill(self, part: str) -> bool:
        """kill -9 of one process, if there is such a one now."""
        for pid in self.pids(part)[:1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
            return True
        return False

    def kill_group(self) -> None:
        """kill -9 of the daemon with all its processes at once."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def kill_all(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill_group()
        wait_until(lambda: not self.pids(), "the end of all processes")

    def is_open(self) -> bool:
        """Whether devices can connect."""
        try:
            socket.create_connection(("127.0.0.1", self.ports[0]), 1).close()
        except OSError:
            return False
        return True

    def device(self) -> TestDevice:
        """One that is enrolled."""
        return TestDevice().known_to(self)

    def covey(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "covey", "server", arguments[0], str(self.directory), *arguments[1:]]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=_environment())

    def folded(self) -> NDArray[np.float64]:
        """What the exported model holds: in each coordinate, how many steps were counted."""
        path = self.log.with_name("exported.safetensors")
        path.unlink(missing_ok=True)
        done = self.covey("export", "--cohort", "0", "-o", str(path))
        assert done.returncode == 0, done.stderr
        return load_file(path)["w"].astype(np.float64) / STEP


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
