"""How a blocking call is given up: from another thread, or because its time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from device_sdk.wire.errors import Cancelled, DeadlinePassed


class Stop:
    """Set once, from any thread or a signal handler's thread; whoever waits wakes at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._mutex = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def set(self) -> None:
        self._event.set()
        with self._mutex:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Sleep until set or the time is over; True if set."""
        return self._event.wait(timeout_seconds)

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Inside the block `set` also calls `callback`; at once if it is set already."""
        with self._mutex:
            set_before = self._event.is_set()
            if not set_before:
                self._callbacks.append(callback)
        if set_before:
            callback()
        try:
            yield
        finally:
            with self._mutex:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)


class Deadline:
    """A moment on the monotonic clock; without seconds, never."""

    def __init__(self, seconds: float | None = None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left_seconds(self) -> float | None:
        """What is left, at least 0; None without a deadline."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self, stop: Stop) -> None:
        """Raise `Cancelled` or `DeadlinePassed` if it is time to give up."""
        if stop.is_set():
            raise Cancelled("this call was cancelled; it can be taken up again")
        if self.left_seconds() == 0.0:
            raise DeadlinePassed("the deadline of this call has passed; it can be taken up again")
