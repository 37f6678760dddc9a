"""A sign of life: a child writes a byte into a pipe every second, and the supervisor counts how long it heard none.

The byte comes from a thread of its own. It says that the process runs, not that it gets on: a step that takes minutes
is no reason to kill anyone. It stops when the process is stopped, starved, or stuck in native code with the
interpreter's lock.

Only time in which the supervisor itself was awake is counted. A machine that slept, or a supervisor that was stopped,
finds its children as it left them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

BEAT_SECONDS = 1.0
_LONGEST_TICK_SECONDS = 2.0
"""A longer pause between two looks of the supervisor counts as so much: it was asleep for the rest."""
_WHILE_STARTING = 5.0
"""Until its first beat, while it imports, a process has so many times as long."""
_MOST_BYTES = 1 << 16


def beat_into(descriptor: int, every_seconds: float = BEAT_SECONDS) -> None:
    """Give signs of life for as long as this process runs."""
    os.set_blocking(descriptor, False)
    pause = threading.Event()

    def beat() -> None:
        # A closed pipe means that the supervisor is gone, and the lifeline ends us.
        with suppress(BrokenPipeError):
            while True:
                # A full one has signs enough.
                with suppress(BlockingIOError):
                    os.write(descriptor, b".")
                pause.wait(every_seconds)

    threading.Thread(target=beat, name="covey-heartbeat", daemon=True).start()


@dataclass
class Heartbeat:
    """The supervisor's end of one child's pipe."""

    silent_seconds: float = 0.0
    """Since the last beat, as far as we were awake."""
    has_begun: bool = False
    writing: int = field(init=False)
    """The child's end; `handed_over` closes our copy of it."""
    _reading: int = field(init=False)

    def __post_init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)

    def handed_over(self) -> None:
        """The child has its end."""
        os.close(self.writing)

    def look(self, passed_seconds: float) -> None:
        """So much time has passed since the last look."""
        self.silent_seconds += min(passed_seconds, _LONGEST_TICK_SECONDS)
        with suppress(BlockingIOError):
            if os.read(self._reading, _MOST_BYTES):
                self.silent_seconds, self.has_begun = 0.0, True

    def has_stopped(self, patience_seconds: float) -> bool:
        """Whether it has been silent for longer than that."""
        return self.silent_seconds > patience_seconds * (1.0 if self.has_begun else _WHILE_STARTING)

    def close(self) -> None:
        os.close(self._reading)


@dataclass
class Ticks:
    """How much time passes between two looks."""

    clock: Callable[[], float] = time.monotonic
    _last: float | None = None

    def passed_seconds(self) -> float:
        """Since this was asked last."""
        last, self._last = self._last, self.clock()
        return 0.0 if last is None else self._last - last
