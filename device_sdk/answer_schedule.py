"""When answers leave: at moments that follow from the task and the app's settings, not when the work is done.

    came |--first--|--first--|-------2·first-------|-----------4·first----------- ...  |  end
         what is done by a tick leaves at the tick; what is not done by the end is answered without its data

How long training takes tells how many records there are, and a slow record tells of itself. So an update, an answer or
a summary leaves `first_seconds`·2^k after its task came, with the smallest k that the work allows; or at the end of the
time that the task has, if that is sooner. What the server still learns is k: the logarithm of the time, rounded up.
Work that has not ended shortly before the end is stopped, and its answer leaves at the end like any other's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.wire.errors import Cancelled

if TYPE_CHECKING:
    from device_sdk.wire.cancelling import Stop

_WORK = 0.8
"""Of the time that a task has: what follows, noise and storing, takes no longer for one device than for another."""
_END = 0.9
"""When the last answers leave; before the task's own end, or the server would not take them."""


@dataclass(frozen=True)
class AnswerSchedule:
    """Makes a timetable for each task, question or summary of one device; 0 seconds: what is done leaves at once."""

    first_seconds: float
    stop: Stop
    clock: Callable[[], float] = time.monotonic

    def begin(self, allowed_seconds: float) -> Timetable:
        """The timetable of what came just now, and has so much time."""
        return Timetable(self.first_seconds, allowed_seconds, self.stop, self.clock)


class Timetable:
    """The ticks of one task. Waiting holds no lock, and ends at once when the device is told to stop."""

    def __init__(
        self, first_seconds: float, allowed_seconds: float, stop: Stop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_seconds, self._stop, self._clock = first_seconds, stop, clock
        self._since = clock()
        self._end = self._since + _END * allowed_seconds
        self.work_seconds = _WORK * allowed_seconds
        """How long work may take before it is stopped, from the beginning."""

    def wait(self) -> None:
        """Come back at the next tick, from which later ones are counted; `Cancelled` when told to stop meanwhile."""
        due = self._next_tick()
        while (left_seconds := due - self._clock()) > 0:
            if self._stop.wait(left_seconds):
                raise Cancelled("this call was cancelled; what is stored is sent by the next one, the same bytes")
        self._since = due

    def _next_tick(self) -> float:
        now, tick_seconds = self._clock(), self._first_seconds
        if not tick_seconds or now >= self._end:
            return now
        while self._since + tick_seconds < now:
            tick_seconds *= 2
        return min(self._since + tick_seconds, self._end)
