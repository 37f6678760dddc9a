"""Messages on their way from the thread that reads a stream to the thread that asks for them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from device_sdk.wire.errors import DeadlinePassed, WireError

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Holds a few messages: a server that says more than is read is slowed down, not stored."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._messages: deque[T] = deque()
        self._changed = threading.Condition()
        self._ending: WireError | None = None
        self._abandoned = False

    def put(self, message: T) -> None:
        """Leave a message; waits for room, and drops it if nobody will read it any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._messages) < self._most or self._abandoned)
            if not self._abandoned:
                self._messages.append(message)
                self._changed.notify_all()

    def end(self, why: WireError) -> None:
        """Nothing more will come; whoever has read the rest is told why, however often they ask."""
        with self._changed:
            self._ending = self._ending or why
            self._changed.notify_all()

    def abandon(self) -> None:
        """Nobody will read any more."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def get(self, timeout_seconds: float | None = None) -> T:
        """The next message, as soon as it is there; `DeadlinePassed` if none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._ending is not None, timeout_seconds)
            if self._messages:
                message = self._messages.popleft()
                self._changed.notify_all()
                return message
            if self._ending is not None:
                raise self._ending
            raise DeadlinePassed("the server has said nothing so far; the session goes on")
