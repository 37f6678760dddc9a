"""Arrivals of many devices, stored together: those that come while one transaction is written share the next."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.store.protocol import Arrival, Intake

log = logging.getLogger("covey.server")

_MOST_TOGETHER = 256
_Waiting = tuple["Arrival", "Future[bool]"]


class GroupCommit:
    """One thread that stores what others hand it. `on_kept` hears what is durable, before anyone is answered."""

    def __init__(self, store: Intake, clock: Callable[[], float], on_kept: Callable[[Sequence[Arrival]], None]) -> None:
        self._store, self._clock, self._on_kept = store, clock, on_kept
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
            batch: list[_Waiting] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) == _MOST_TOGETHER or self._queue.empty():
                    break
                item = self._queue.get()
            ended = item is None
            self._store_all(batch)

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
