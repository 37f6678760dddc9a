"""A server to embed: the whole daemon behind a few methods, for programs that are more than a command line.

with Server.open("federation") as server:
    print(server.invite(3))
    ...
# stopped in good order
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from server_kit.commands.exporting import export_cohort
from server_kit.commands.inviting import invite
from server_kit.commands.opened import opened
from server_kit.config import ServerConfig
from server_kit.daemon.federation_home import Home
from server_kit.errors import ServerNotReady
from server_kit.store.protocol import CohortRecord

_STOPPING_SECONDS = 15.0
_LOOK_SECONDS = 0.1
_COMMAND = "import sys; from covey import main; sys.exit(main())"


class Server:
    """One federation in a directory. Starting it starts the daemon's own processes, which end with this one."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._daemon: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    @classmethod
    def create(cls, directory: str | Path, settings: str = "") -> Self:
        """A new federation with its own authority and keys; `settings` is the text of `server.toml`."""
        return cls(Home.create(Path(directory), settings))

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """The federation in a directory."""
        return cls(Home.open(Path(directory)))

    @property
    def config(self) -> ServerConfig:
        return self.home.config

    def start(self, patience_seconds: float = 120.0) -> None:
        """Start the daemon; returns when devices can connect, and raises `ServerNotReady` if that does not come."""
        reading, self._lifeline = os.pipe()
        command = [sys.executable, "-c", _COMMAND, "server", "run", str(self.home.directory)]
        self._daemon = subprocess.Popen([*command, "--lifeline", str(reading)], pass_fds=(reading,))
        os.close(reading)
        until = time.monotonic() + patience_seconds
        while not self.is_ready():
            if self._daemon.poll() is not None or time.monotonic() > until:
                self.stop()
                raise ServerNotReady("the server did not begin; its log says why; nothing is running")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Stop in good order; at once if that takes too long."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        os.close(self._lifeline)

    def is_ready(self) -> bool:
        """Whether the coordinator works and accepts devices."""
        from server_kit.snapshots import read_snapshots

        found = {snapshot.process: snapshot for snapshot in read_snapshots(self.home.run)}
        coordinator = found.get("coordinator")
        if self._daemon is None or self._daemon.poll() is not None or coordinator is None:
            return False
        return bool(coordinator.facts.get("listening")) and _is_alive(coordinator.pid)

    def invite(self, count: int = 1, days: float = 7.0) -> list[str]:
        """Invitations, each for one device."""
        with opened(self.home.directory) as federation:
            return list(invite(federation, count, days).invitations)

    def cohorts(self) -> list[CohortRecord]:
        """The cohorts that train."""
        with opened(self.home.directory) as federation:
            return federation.store.cohorts()

    def export(self, cohort: str, out: str | Path) -> CohortRecord:
        """Write the newest model of a cohort as safetensors."""
        with opened(self.home.directory) as federation:
            return export_cohort(federation, cohort, Path(out))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
