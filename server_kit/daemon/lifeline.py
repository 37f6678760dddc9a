"""What ties the processes of a daemon together: a child ends with its parent, and with the lease it works under."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.errors import LeaseLost, ServerError
from server_kit.steady_clock import steady_seconds

if TYPE_CHECKING:
    from server_kit.store.protocol import Lease, Leases

log = logging.getLogger("covey.server")

ORPHANED, LOCKED_OUT = 71, 72
"""Exit codes: the supervisor is gone; another works under our lease."""
LEASE_SECONDS = 15.0


def end_with(parent_descriptor: int) -> None:
    """End this process at once when the other end of a pipe is closed: when the supervisor is gone, however it went."""

    def watch() -> None:
        while os.read(parent_descriptor, 1):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="covey-lifeline", daemon=True).start()


@dataclass
class _Unchanged:
    """For how long another's lease has stood as it is, by our own monotonic clock."""

    name: str
    monotonic: Callable[[], float]
    _seen: Lease | None = None
    _since: float = 0.0

    def until_seconds(self, held: Sequence[Lease]) -> float:
        """Its end, if it was not renewed for longer than any lease lasts; else a time long past."""
        found = next((lease for lease in held if lease.name == self.name), None)
        if found != self._seen:
            self._seen, self._since = found, self.monotonic()
        if found is None or self.monotonic() - self._since < 2 * LEASE_SECONDS:
            return -math.inf
        return found.until_seconds


class LeaseKeeper:
    """Holds a lease for as long as the process lives. Without it the process has no business here and ends."""

    def __init__(
        self,
        store: Leases,
        name: str,
        clock: Callable[[], float] = steady_seconds,
        wait: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._clock, self._wait, self._monotonic = store, clock, wait, monotonic
        self._ended = threading.Event()
        self.lease = self._acquired(name)
        self._thread = threading.Thread(target=self._keep, name="covey-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the lease back."""
        self._ended.set()
        self._thread.join()
        self._store.release(self.lease)

    def _acquired(self, name: str) -> Lease:
        """A process that takes the place of one of ours need not wait; the epoch locks the other out."""
        unchanged = _Unchanged(name, self._monotonic)
        while True:
            # A lease that nobody renews is over, whatever the clock of the machine said that wrote down its end.
            now = max(self._clock(), unchanged.until_seconds(self._store.held()))
            lease = self._store.acquire(name, f"{os.uname().nodename}:{name}", LEASE_SECONDS, now)
            if lease is not None:
                # What was just written may be far ahead too.
                return self._store.renew(lease, LEASE_SECONDS, self._clock())
            log.warning("another machine works at this; waiting for its lease to end", extra={"lease": name})
            self._wait(LEASE_SECONDS / 3)

    def _keep(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / 3):
            try:
                self._store.renew(self.lease, LEASE_SECONDS, self._clock())
            except LeaseLost:
                log.error("another process has taken over; this one ends", extra={"lease": self.lease.name})  # noqa: TRY400
                os._exit(LOCKED_OUT)
            except ServerError:
                log.exception("could not renew a lease; trying again", extra={"lease": self.lease.name})
