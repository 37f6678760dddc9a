"""Everything the demo starts, and the promise that nothing of it is left.

Children stay in the demo's process group, so whatever ends a terminal ends them too. Devices hold a lifeline and end
even where the demo is killed. A signal is held back while a process is being started, or that would be forgotten.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

_HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_SECONDS = (2.0, 10.0)
"""A second SIGTERM has a server stop at once; whoever stays after the last is killed."""


class Interrupts:
    """Turns signals into `KeyboardInterrupt`, but not inside `held`."""

    def __init__(self) -> None:
        self._holding = 0
        self._pending = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._heard) for number in _HEEDED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is done here is done whole."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if self._pending and not self._holding:
            self._pending = False
            raise KeyboardInterrupt

    def _heard(self, _: int, __: FrameType | None) -> None:
        if self._holding:
            self._pending = True
        else:
            raise KeyboardInterrupt


class Processes:
    """What was started; at the end of the block all of it is stopped."""

    def __init__(self, interrupts: Interrupts, logs: Path) -> None:
        self._interrupts, self._logs = interrupts, logs
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._lifeline = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever is impatient now must not leave anything behind.
        with suppress(KeyboardInterrupt), self._interrupts.held():
            self.stop(list(self.started))
            for descriptor in self._lifeline:
                os.close(descriptor)

    def start(self, name: str, command: Sequence[str], *, tied: bool = False) -> subprocess.Popen[bytes]:
        """Start a process whose words go to a log; a tied one gets a lifeline, and reads from a pipe."""
        reading = self._lifeline[0]
        more = ("--lifeline", str(reading)) if tied else ()
        with self._interrupts.held(), self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*command, *more],
                stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(reading,) if tied else (),
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            self.started[name] = process
        return process

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self._logs / f"{name}.log"

    def ended(self) -> list[str]:
        """Who is no longer there."""
        return [name for name, process in self.started.items() if process.poll() is not None]

    def stop(self, names: Sequence[str]) -> None:
        """Stop these, at first politely."""
        left = [self.started.pop(name) for name in names]
        for patience in _PATIENCE_SECONDS:
            left = _asked_to_stop(left, patience)
        for process in left:
            process.kill()
            process.wait()


def _asked_to_stop(
    processes: Sequence[subprocess.Popen[bytes]], patience_seconds: float
) -> list[subprocess.Popen[bytes]]:
    """Send SIGTERM; those that are still there after a while."""
    for process in processes:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        process.terminate()
    until = time.monotonic() + patience_seconds
    while (left := [each for each in processes if each.poll() is None]) and time.monotonic() < until:
        time.sleep(0.02)
    return left
