"""When to ask devices: how many must wait before a cohort opens a round, and for how long it waits for company."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_kit.steady_clock import steady_seconds

if TYPE_CHECKING:
    from server_kit.daemon.federation_records import FederationRecords
    from server_kit.daemon.live_desk import LiveDesk
    from server_kit.interfaces import CohortId, DeviceId


@dataclass(frozen=True)
class Patience:
    """How long the coordinator waits for whom."""

    waiting_needed: int = 1
    """With how many waiting devices a round is opened, all cohorts together."""
    gather_seconds: float = 5.0
    """A cohort that cannot get its share of those within this time begins with whom it has."""
    absence_seconds: float = 60.0
    """A device that is out and not connected for so long is given up."""
    rounds: int = 0
    """After how many rounds a cohort rests; 0: never."""


@dataclass
class Gathering:
    """Knows who is awaited and since when. Decides nothing about whom to ask: that is the engine's affair."""

    kept: FederationRecords
    desk: LiveDesk
    patience: Patience
    clock: Callable[[], float] = steady_seconds
    endings: int = 0
    """Tasks that had ended without an answer when rows were read last."""
    _idle_since: dict[CohortId, float] = field(default_factory=dict)
    _absent_since: dict[DeviceId, float] = field(default_factory=dict)

    def someone_is_wanted(self, now_seconds: float) -> bool:
        """Whether asking could lead to anything; to find that out by asking takes a while."""
        waiting = self.desk.presence.num_waiting()
        if not waiting or self.is_over():
            return False
        for leaf in self._idle():
            self._idle_since.setdefault(leaf, now_seconds)
        return waiting >= self._waiting_needed(now_seconds)

    def wake_from(self) -> float:
        """How many must wait for a further one to be of interest."""
        if self.is_over() or any(leaf not in self._idle_since for leaf in self._idle()):
            return 1
        return self._waiting_needed(self.clock())

    def least_waiting(self, leaf: CohortId) -> int:
        """Fewer and fewer, the longer a cohort has waited: in the end it begins with whom it has."""
        waited = self.clock() - self._idle_since.get(leaf, self.clock())
        if waited >= self.patience.gather_seconds:
            return 1
        return max(1, self.patience.waiting_needed // len(self.kept.federation.leaves))

    def opened(self, leaf: CohortId) -> None:
        """A cohort waits no longer."""
        self._idle_since.pop(leaf, None)

    def is_over(self) -> bool:
        """Whether every cohort has done its rounds."""
        rounds, leaves = self.patience.rounds, self.kept.federation.leaves
        return rounds > 0 and all(self.kept.records[leaf].round >= rounds for leaf in leaves)

    def give_up_the_absent(self) -> None:
        """Devices that were asked and have not been here for a while make room for others."""
        now, here = self.clock(), self.desk.presence.here()
        out = {task.device: task for task in self.desk.out()}
        self._absent_since = {device: self._absent_since.get(device, now) for device in out if device not in here}
        for device, since in list(self._absent_since.items()):
            if now - since >= self.patience.absence_seconds:
                self.desk.give_up(out[device])
                del self._absent_since[device]

    def next_look_seconds(self) -> float:
        """When to look again though nothing happens."""
        now = self.clock()
        gathered = (since + self.patience.gather_seconds for since in self._idle_since.values())
        absent = (since + self.patience.absence_seconds for since in self._absent_since.values())
        later = [self.kept.federation.next_deadline(now), *gathered, *absent]
        return min((at for at in later if at > now), default=math.inf)

    def _waiting_needed(self, now_seconds: float) -> float:
        """How many must wait for some of them to be asked; no number is enough while open rounds want nobody."""
        if self.kept.plan.strategy.is_asynchronous or self.endings != self.desk.endings:
            return 1
        idle = self._idle()
        for leaf in self.kept.federation.leaves:
            cohort = self.kept.federation.cohort(leaf)
            if leaf not in idle and (cohort.deadline_seconds() <= now_seconds or cohort.wanted(now_seconds) > 0):
                return 1
        return min((self.least_waiting(leaf) for leaf in idle), default=math.inf)

    def _idle(self) -> set[CohortId]:
        """The leaves without an open round."""
        return {leaf for leaf in self.kept.federation.leaves if self.kept.records[leaf].opened_at_seconds is None}
