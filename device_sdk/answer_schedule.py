"""When answers leave: at moments that follow from the task and the app's settings, not when the work is done.

    came |--first--|--first--|-------2·first-------|-----------4·first----------- ...  |  end
         what is done by a tick leaves at the tick; what is not done by the end is answered without its data

How long training takes tells how many records there are, and a slow record tells of itself. So an update, an answer or
a summary leaves `first_seconds`·2^k after its task came, with the smallest k that the work allows; or at the end of the
time that the task has, if that is sooner. What the server still learns is k: the logarithm of the time, rounded up.
Work that has not ended shortly before the end is stopped, and its answer leaves at the end like any other's. Work that
fails is over too soon: its answer leaves as long after its task as the last one did that went well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
    _usual_seconds: dict[str, float] = field(default_factory=dict)
    """What the last one of a kind took that went well, in ticks; the server has seen it already."""

    def begin(self, allowed_seconds: float, kind: str = "") -> Timetable:
        """The timetable of what came just now, and has so much time; like others of its `kind`, if that is said."""
        return Timetable(self, allowed_seconds, kind)


class Timetable:
    """The ticks of one task. Waiting holds no lock, and ends at once when the device is told to stop."""

    def __init__(self, schedule: AnswerSchedule, allowed_seconds: float, kind: str) -> None:
        self._schedule, self._kind = schedule, kind
        self._has_failed = False
        self._since = schedule.clock()
        self._end = self._since + _END * allowed_seconds
        self.work_seconds = _WORK * allowed_seconds
        """How long work may take before it is stopped, from the beginning."""

    def as_usual(self) -> None:
        """What is waited with next has failed, so it is to take as long as it usually does."""
        self._has_failed = True

    def wait(self) -> None:
        """Come back at the next tick, from which later ones are counted; `Cancelled` when told to stop meanwhile."""
        due = self._next_tick()
        while (left_seconds := due - self._schedule.clock()) > 0:
            if self._schedule.stop.wait(left_seconds):
                raise Cancelled("this call was cancelled; what is stored is sent by the next one, the same bytes")
        self._since, self._has_failed = due, False

    def _next_tick(self) -> float:
        now, tick_seconds = self._schedule.clock(), self._schedule.first_seconds
        if not tick_seconds or now >= self._end:
            return now
        while self._since + tick_seconds < now:
            tick_seconds *= 2
        usual = self._schedule._usual_seconds
        if self._has_failed:
            tick_seconds = max(tick_seconds, usual.get(self._kind, 0.0))
        else:
            usual[self._kind] = tick_seconds
        return min(self._since + tick_seconds, self._end)
