"""What the observer reads of the store: seldom enough not to be in anybody's way, and never in its way if it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from server_kit.commands.overview import DeviceCounts, count_devices
from server_kit.errors import ServerError
from server_kit.privacy_spend import PrivacySpend, SpendSpread, stored_spend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from server_kit.daemon.federation_home import Home
    from server_kit.store.protocol import CohortRecord, DeviceRecord, Lease, Store

log = logging.getLogger("covey.server")
Value = TypeVar("Value")
_FRESH_SECONDS = 5.0
_SPEND_SECONDS = 120.0


@dataclass(frozen=True)
class StoreFacts:
    """What the store knows, a few seconds old."""

    devices: DeviceCounts
    cohorts: tuple[CohortRecord, ...]
    refusals: Mapping[str, int]
    leases: tuple[Lease, ...]

    @property
    def cohorts_by_state(self) -> Mapping[str, int]:
        return Counter(each.state.value for each in self.cohorts)


@dataclass
class _Kept:
    """A value and until when it is good; whoever finds it stale reads it anew, and others of its kind wait."""

    value: Any = None
    until_seconds: float = 0.0
    mutex: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class StoreReader:
    """Reads the store for several requests at once; each answer is kept for a while.

    Adding up the spend of many devices takes seconds, and holds up nobody who asks for anything else.
    """

    home: Home
    open_store: Callable[[], Store] | None = None
    clock: Callable[[], float] = time.monotonic
    _store: Store | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _facts: _Kept = field(default_factory=_Kept)
    _spread: _Kept = field(default_factory=_Kept)
    _devices: _Kept = field(default_factory=_Kept)

    def facts(self) -> StoreFacts | None:
        """None if the store cannot be read now."""
        return self._read(self._facts, _FRESH_SECONDS, _facts_of)

    def spend(self) -> PrivacySpend | None:
        """What devices have spent; None if the store cannot be read now."""
        spread = self.spread()
        return None if spread is None else spread.summary

    def spread(self) -> SpendSpread | None:
        """As `spend`, with every device in it."""
        delta = self.home.config.policy.delta
        return self._read(self._spread, _SPEND_SECONDS, lambda store: stored_spend(store, delta))

    def spread_so_far(self) -> SpendSpread | None:
        """The last one, without waiting; if it is old, another is begun aside."""
        if self.clock() >= self._spread.until_seconds and not self._spread.mutex.locked():
            threading.Thread(target=self.spread, name="covey-spend", daemon=True).start()
        value: SpendSpread | None = self._spread.value
        return value

    def devices(self) -> list[DeviceRecord] | None:
        """All; None if the store cannot be read now."""
        return self._read(self._devices, _FRESH_SECONDS, lambda store: store.devices())

    def read(self, read: Callable[[Store], Value]) -> Value | None:
        """What `read` finds now; None if the store cannot be read."""
        return self._try(read)

    def close(self) -> None:
        with self._mutex:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _read(self, kept: _Kept, fresh_seconds: float, read: Callable[[Store], Value]) -> Value | None:
        with kept.mutex:
            if self.clock() >= kept.until_seconds:
                kept.value, kept.until_seconds = self._try(read), self.clock() + fresh_seconds
            value: Value | None = kept.value
            return value

    def _try(self, read: Callable[[Store], Value]) -> Value | None:
        try:
            return read(self._opened())
        except (ServerError, OSError) as error:
            log.warning("the store cannot be read; what it knows is not shown", extra={"reason": error})
            self.close()
            return None

    def _opened(self) -> Store:
        with self._mutex:
            if self._store is None:
                self._store = (self.open_store or self.home.open_store)()
            return self._store


def _facts_of(store: Store) -> StoreFacts:
    leases: Sequence[Lease] = store.held()
    return StoreFacts(
        devices=count_devices(store, (), time.time()),
        cohorts=tuple(store.all_cohorts()),
        refusals=dict(store.refusals()),
        leases=tuple(leases),
    )
