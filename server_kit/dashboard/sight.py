"""Everything that the dashboard looks at, read at most once a second whoever asks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_kit.dashboard.chronicle import Chronicle, in_tree_order
from server_kit.snapshots import read_snapshots
from server_kit.store.protocol import TaskState

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home
    from server_kit.observer.store_reader import StoreReader
    from server_kit.snapshots import Snapshot
    from server_kit.store.protocol import CohortRecord, Happening, Store, TaskRecord

_FRESH_SECONDS = 0.9


@dataclass(frozen=True)
class OpenRound:
    """What a cohort waits for."""

    out: int
    arrived: int
    late: int
    """Devices that still work for an earlier round."""


@dataclass(frozen=True)
class Standing:
    """The store at one moment."""

    cohorts: tuple[CohortRecord, ...]
    rounds: Mapping[str, OpenRound]
    working: frozenset[str]
    """Devices that have a task now."""
    read_to: int
    """The number of the last thing that happened."""


@dataclass
class Sight:
    """One federation, looked at. For any thread."""

    home: Home
    reader: StoreReader
    clock: Callable[[], float] = time.time
    chronicle: Chronicle = field(default_factory=Chronicle)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _standing: Standing | None = None
    _until: float = 0.0

    def standing(self) -> Standing | None:
        """None if the store cannot be read now."""
        with self._mutex:
            if time.monotonic() >= self._until:
                self._standing = self.reader.read(self._look)
                self._until = time.monotonic() + _FRESH_SECONDS
            return self._standing

    def snapshots(self) -> list[Snapshot]:
        return read_snapshots(self.home.run, self.clock()) if self.home.is_running() else []

    def happenings(self, after: int, limit: int) -> Sequence[Happening] | None:
        return self.reader.read(lambda store: store.happenings(after=after, limit=limit))

    def _look(self, store: Store) -> Standing:
        tasks = store.tasks()
        cohorts = tuple(in_tree_order(store.all_cohorts()))
        self.chronicle.read_on(store)
        return Standing(
            cohorts=cohorts,
            rounds={each.cohort: _open_round(each, tasks) for each in cohorts},
            working=frozenset(task.device for task in tasks if task.state is TaskState.OUT),
            read_to=self.chronicle.read_to,
        )


def _open_round(record: CohortRecord, tasks: Sequence[TaskRecord]) -> OpenRound:
    own = [task for task in tasks if task.cohort == record.cohort]
    count = Counter(task.state for task in own if task.round >= record.round)
    late = sum(task.state is TaskState.OUT and task.round < record.round for task in own)
    return OpenRound(count[TaskState.OUT], count[TaskState.ARRIVED], late)
