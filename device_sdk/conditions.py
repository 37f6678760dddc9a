r"""When a device may take part: the app knows, and is asked before and during training.

    runs --a condition fails--> paused --it holds again--> runs
                                   \--patience is over--> stopped
    `stop` is set, or the deadline passes: stopped, from either

The app gives functions; one that is not given is not asked. One that raises or answers nonsense counts as "no", and is
reported as an event: a device that cannot tell whether it is charging must not drain its battery.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from device_sdk.events import emit, error_name
from device_sdk.trainers.errors import TrainingStopped
from device_sdk.wire.cancelling import Stop

Question = Callable[[], bool]


@dataclass(frozen=True)
class Conditions:
    """What must hold for a device to take part."""

    charging: Question | None = None
    unmetered: Question | None = None
    """Asked before a round, because of what it transfers; training itself uses no network."""
    idle: Question | None = None
    battery_level: Callable[[], float] | None = None
    """From 0, empty, to 1."""
    least_battery_level: float = 0.2

    def missing(self) -> tuple[str, ...]:
        """What speaks against a round now; empty if nothing does."""
        unmetered = () if _holds("unmetered", self.unmetered) else ("unmetered",)
        return (*self.missing_in_training(), *unmetered)

    def missing_in_training(self) -> tuple[str, ...]:
        """What speaks against going on with training; empty if nothing does."""
        battery = None if self.battery_level is None else self._battery_suffices
        asked = {"charging": self.charging, "idle": self.idle, "battery_level": battery}
        return tuple(name for name, question in asked.items() if not _holds(name, question))

    def _battery_suffices(self) -> bool:
        level = float(self.battery_level()) if self.battery_level is not None else 0.0
        if not 0 <= level <= 1:
            raise ValueError("a battery level lies between 0 and 1")
        return level >= self.least_battery_level


class TrainingGate:
    """What a trainer calls between batches: it comes back when training may go on, or raises `TrainingStopped`."""

    def __init__(
        self,
        conditions: Conditions,
        stop: Stop | None = None,
        *,
        deadline_seconds: float = math.inf,
        ask_every_seconds: float = 5.0,
        patience_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conditions, self._stop, self._clock = conditions, stop or Stop(), clock
        self._ask_every_seconds, self._patience_seconds = ask_every_seconds, patience_seconds
        self._ends = clock() + deadline_seconds
        self._next_question = -math.inf
        self._held = threading.Event()
        self._wake = threading.Event()
        self.overran = False
        """Whether training was stopped because its own work took too long; a condition was not what it waited for."""

    def hold(self) -> None:
        """Pause before the next batch, until `release`; from any thread."""
        self._held.set()

    def release(self) -> None:
        """Go on after `hold`, if the conditions agree."""
        self._held.clear()
        self._wake.set()

    def __call__(self) -> None:
        self.overran = self._clock() >= self._ends and not self._stop.is_set()
        self._check_stopped()
        missing = self._missing()
        if not missing:
            return
        emit("training_paused", missing=", ".join(missing))
        self._wait()
        emit("training_resumed")

    def _wait(self) -> None:
        given_up = self._clock() + self._patience_seconds
        with self._stop.calling(self._wake.set):
            while True:
                self._wake.wait(max(0.0, min(self._ask_every_seconds, self._ends - self._clock())))
                self._wake.clear()
                self._check_stopped()
                self._next_question = -math.inf
                if not self._missing():
                    return
                # A person who said "hold" is waited for; a condition only as long as it is worth it.
                if self._clock() >= given_up and not self._held.is_set():
                    _stop_for("conditions", "the conditions for training no longer hold")

    def _missing(self) -> tuple[str, ...]:
        if self._held.is_set():
            return ("held",)
        now = self._clock()
        # Asking may cost a system call or more; batches may take microseconds.
        if now < self._next_question:
            return ()
        missing = self._conditions.missing_in_training()
        self._next_question = now + self._ask_every_seconds
        return missing

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            _stop_for("cancelled", "training was cancelled")
        if self._clock() >= self._ends:
            _stop_for("deadline", "the time for the task is over")


def _stop_for(reason: str, sentence: str) -> NoReturn:
    emit("training_stopped", reason=reason)
    raise TrainingStopped(f"{sentence}; what was trained so far is dropped and nothing was released")


def _holds(name: str, question: Question | None) -> bool:
    if question is None:
        return True
    try:
        return bool(question())
    except Exception as error:  # whatever the app's function raises, it does not mean yes
        emit("condition_failed", condition=name, error=error_name(error))
        return False
