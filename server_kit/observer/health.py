"""Whether the server is alive, and whether it takes in devices: two questions with two answers.

A process that hangs may still publish, from a thread of its own; so one that says when it last worked is believed.
The coordinator publishes while it takes in devices and at no other time; to be ready it needs its lease as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.metrics import BEAT

if TYPE_CHECKING:
    from server_kit.snapshots import Snapshot
    from server_kit.store.protocol import Lease

NEEDED = ("supervisor", "coordinator")
MOST_SILENT_SECONDS = 15.0
"""Seven snapshots missed: the process hangs, or is gone."""
MOST_IDLE_SECONDS = 120.0
"""Since a process last worked, if it says so: clustering many devices takes a while."""
COORDINATOR_LEASE = "coordinator"


@dataclass(frozen=True)
class Health:
    """The answer, and if it is no, all the reasons."""

    faults: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.faults


def is_alive(snapshots: Sequence[Snapshot], now_seconds: float) -> Health:
    """Whether the processes that everything depends on still publish."""
    newest = {each.process: each for each in snapshots}
    faults = []
    for process in NEEDED:
        if (found := newest.get(process)) is None:
            faults.append(f"{process} has published nothing")
        elif (silent := now_seconds - found.at) > MOST_SILENT_SECONDS:
            faults.append(f"{process} has been silent for {silent:.0f} s")
        elif (idle := now_seconds - found.facts.get(BEAT, now_seconds)) > MOST_IDLE_SECONDS:
            faults.append(f"{process} has hung for {idle:.0f} s")
    return Health(tuple(faults))


def is_ready(
    snapshots: Sequence[Snapshot], leases: Sequence[Lease] | None, now_seconds: float, steady_seconds: float
) -> Health:
    """Whether devices that come now are taken in. Leases go by another clock than what processes publish."""
    faults = list(is_alive(snapshots, now_seconds).faults)
    if leases is None:
        faults.append("the store cannot be read")
    elif not any(lease.name == COORDINATOR_LEASE and lease.until_seconds > steady_seconds for lease in leases):
        faults.append("no coordinator holds its lease")
    return Health(tuple(faults))
