"""Ends a call in which nothing moves: gRPC has a deadline for the whole of a call, and none for its pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self


class Silence:
    """Calls `give_up` once nothing was heard for `seconds`; inside a `with` block."""

    def __init__(self, seconds: float, give_up: Callable[[], object]) -> None:
        self._seconds, self._give_up = seconds, give_up
        self._heard_at = time.monotonic()
        self._done = threading.Event()
        self.broken = False

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="covey-silence", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        left = self._seconds
        while not self._done.wait(left):
            left = self._heard_at + self._seconds - time.monotonic()
            if left <= 0:
                self.broken = True
                self._give_up()
                return
