"""Lives that end at any line: run a function in a process of its own and kill -9 it at the n-th line of our code.

Run as a script it is a nursery: for each line `FUNCTION HOME KILL_AT AFTER` on its input it forks, calls that function
of its module with HOME, and prints how that ended and how many lines of the product it ran. KILL_AT 0 lets it live,
unless AFTER says after how many seconds, be it in the middle of a line, it is to die. A function whose faults show only
after a death in one place has an attribute `dies_in`, the qualified name of the only function whose lines then count.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[1]
OURS = (f"{ROOT}/device_sdk/", f"{ROOT}/privacy/")
"""Whose lines count, where the module of a life names no `OURS` of its own."""
KILLED = -signal.SIGKILL


class End(NamedTuple):
    code: int
    lines: int


class ForkingProcess:
    """A module of ours that runs as a process and forks a life for each line it is given."""

    def __init__(self, *module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class Nursery(ForkingProcess):
    """Begins lives, one at a time. They are forked, so that a life costs milliseconds."""

    def __init__(self, module: str) -> None:
        super().__init__("tests.mortal", module)

    def live(self, function: str, home: Path, kill_at: int = 0, kill_after_seconds: float = 0.0) -> End:
        """One life of `function(home)`, killed at that line or moment if it gets there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{function}\t{home}\t{kill_at}\t{kill_after_seconds}\n")
        self._process.stdin.flush()
        return End(*map(int, self._process.stdout.readline().split()))


class _Clock:
    """Counts the lines of our code, or of one of its functions, and ends the process at one of them."""

    def __init__(self, kill_at: int, ours: tuple[str, ...], dies_in: str | None) -> None:
        self.kill_at, self.lines, self._ours, self._dies_in = kill_at, 0, ours, dies_in

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        counts = code.co_filename.startswith(self._ours) and self._dies_in in (None, code.co_qualname)
        return self.line if counts else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def _live(function: Any, home: Path, clock: _Clock, report: int) -> None:
    sys.settrace(clock)
    function(home)
    sys.settrace(None)
    os.write(report, str(clock.lines).encode())
    os._exit(0)


def nursery(module: str) -> None:
    functions = importlib.import_module(module)
    for request in sys.stdin:
        name, home, kill_at, after = request.rstrip("\n").split("\t")
        reading, report = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                function = getattr(functions, name)
                clock = _Clock(int(kill_at), getattr(functions, "OURS", OURS), getattr(function, "dies_in", None))
                _live(function, Path(home), clock, report)
            finally:
                os._exit(1)
        os.close(report)
        if float(after):
            time.sleep(float(after))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lines = os.read(reading, 20).decode() or "0"
        os.close(reading)
        os.write(1, f"{code} {lines}\n".encode())


if __name__ == "__main__":
    nursery(sys.argv[1])
