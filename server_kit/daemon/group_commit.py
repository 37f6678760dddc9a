"""Arrivals of many devices, stored together: those that come while one transaction is written share the next.

A transaction costs as much for one arrival as for several. So those with which nothing can go on yet wait a little for
others; they are acknowledged later, and no round ends later, since the arrival that it waits for is stored at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.store.protocol import Arrival, Intake

log = logging.getLogger("covey.server")

_MOST_TOGETHER = 256
COMPANY_SECONDS = 0.02
"""For so long at most an arrival waits for others."""
_Waiting = tuple["Arrival", "Future[bool]"]


class GroupCommit:
    """One thread that stores what others hand it. `on_kept` hears what is durable, before anyone is answered.

    `can_wait` says whether nobody could go on if these were stored now.
    """

    def __init__(
        self,
        store: Intake,
        clock: Callable[[], float],
        on_kept: Callable[[Sequence[Arrival]], None],
        can_wait: Callable[[Sequence[Arrival]], bool] = lambda _: False,
    ) -> None:
        self._store, self._clock, self._on_kept, self._can_wait = store, clock, on_kept, can_wait
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="covey-intake", daemon=True)
        self._thread.start()

    def begin(self, arrival: Arrival) -> Future[bool]:
        """What the store says of this arrival, once it is durable. It cannot be called off."""
        future: Future[bool] = Future()
        future.set_running_or_notify_cancel()
        self._queue.put((arrival, future))
        return future

    def close(self) -> None:
        """Store what waits, and stop."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._gathered()
            self._store_all(batch)

    def _gathered(self) -> tuple[list[_Waiting], bool]:
        """What waits, with what joins it soon; and whether that was all."""
        batch: list[_Waiting] = []
        item = self._queue.get()
        until = time.monotonic() + COMPANY_SECONDS
        with suppress(queue.Empty):
            while item is not None:
                batch.append(item)
                if len(batch) == _MOST_TOGETHER:
                    return batch, False
                item = self._queue.get(timeout=self._patience_seconds(batch, until))
            return batch, True
        return batch, False

    def _patience_seconds(self, batch: list[_Waiting], until: float) -> float:
        if self._queue.empty() and self._can_wait([arrival for arrival, _ in batch]):
            return max(0.0, until - time.monotonic())
        return 0.0

    def _store_all(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            kept = self._store.accept([arrival for arrival, _ in batch], self._clock())
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            # One of them may be to blame; the others are not.
            for each in batch:
                self._store_all([each])
            return
        try:
            self._on_kept([arrival for (arrival, _), stored in zip(batch, kept, strict=True) if stored])
        except Exception:
            # It is stored all the same, and whoever was not woken looks now and then.
            log.exception("failed to tell of what was stored")
        for (_, future), stored in zip(batch, kept, strict=True):
            future.set_result(stored)
