"""A run in a thread of its own: an app's window stays alive beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.wire.cancelling import Stop


class BackgroundRun:
    """`Device.run`, begun; it ends by itself, with `stop`, or with the app."""

    def __init__(self, run: Callable[[], int], stop: Stop) -> None:
        self._run, self._stop = run, stop
        self.updates_sent: int | None = None
        """How many updates were sent; none before the end."""
        self.error: BaseException | None = None
        """What ended the run, if anything did."""
        self._thread = threading.Thread(target=self._work, name="covey-device", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """End the run and wait for its thread; False if that takes longer."""
        self._stop.set()
        return self.wait(timeout_seconds)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the run has ended; False if that takes longer."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self.updates_sent = self._run()
        except BaseException as error:
            self.error = error  # a thread has nobody else to tell
