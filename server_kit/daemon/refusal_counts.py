"""What the gateway refuses, counted by reason and device. A flood of refusals is one write now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from server_kit.errors import StoreError

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from server_kit.store.protocol import Intake

log = logging.getLogger("covey.server")


class RefusalCounts:
    """Counts in memory until `flush`. What a process that is killed has not written is forgotten."""

    def __init__(self, store: Intake, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._mutex = threading.Lock()
        self._counts: Counter[tuple[str, DeviceId | None]] = Counter()

    def count(self, reason: str, device: DeviceId | None) -> None:
        """Something was refused; `device` is None for a stranger."""
        with self._mutex:
            self._counts[reason, device] += 1

    def flush(self) -> None:
        """Write what was counted since the last time; after a failure it is tried again with the next."""
        with self._mutex:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            self._store.count_refusals(counts, self._clock())
        except StoreError as error:
            log.warning("could not store what was refused; trying again", extra={"reason": error})
            with self._mutex:
                self._counts += counts
