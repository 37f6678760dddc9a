"""`covey demo` as people start it, in a process group of its own, so that one can see whether anything is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.heard import heard


class DemoProcess:
    """One demo with its output piped."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.out = folder / "out"
        command = [sys.executable, "-m", "covey", "demo", "--out", str(self.out), *options]
        with heard(signal.SIGINT, signal.SIGHUP):
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.text = ""

    def read_until(self, words: str) -> None:
        """Read on until a line holds these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if words in line:
                return
        raise AssertionError(f"it never said {words!r}:\n{self.text}")

    def read_to_end(self) -> int:
        """Everything else that it says, and its exit code."""
        assert self.process.stdout is not None
        self.text += self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(60)

    def interrupt(self, number: signal.Signals = signal.SIGINT, *, everyone: bool = False) -> None:
        """As Ctrl-C does it, which signals the whole group, or as `kill` does it."""
        (os.killpg if everyone else os.kill)(self.process.pid, number)

    def is_alone_gone(self, patience_seconds: float = 10.0) -> bool:
        """Whether no process of the group is left."""
        until = time.monotonic() + patience_seconds
        while time.monotonic() < until:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.05)
        return False

    def clean_up(self) -> None:
        """Whatever a test found."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
