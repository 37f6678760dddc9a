"""A federation at a glance: what its processes publish and what its store knows, whether or not a daemon runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from server_kit.snapshots import read_snapshots
from server_kit.store.protocol import CohortState, TaskState

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home
    from server_kit.privacy_spend import PrivacySpend
    from server_kit.snapshots import Snapshot
    from server_kit.store.protocol import CohortRecord, Happening, Store

LATELY_SECONDS = 600.0
_SHOWN_HAPPENINGS = 8
_READ_AT_ONCE = 1000


@dataclass(frozen=True)
class ProcessLine:
    """One process, as it last published itself."""

    process: str
    pid: int
    up_seconds: float
    silent_seconds: float
    rss_bytes: int


@dataclass(frozen=True)
class CohortLine:
    """One cohort between two of its models."""

    cohort: str
    state: str
    round: int
    version: int
    out: int
    """Devices that train for it now."""
    arrived: int
    """Updates that wait for the next model."""
    needed: int
    open_seconds: float | None
    """How long its round has been open; None: none is."""
    accuracy: float | None
    """Of its newest tested model."""
    devices: int | None
    """How many belong to it, as far as it knew when its last round ended."""


@dataclass(frozen=True)
class DeviceCounts:
    """How many devices there are."""

    enrolled: int
    revoked: int
    seen_lately: int
    connected: int | None
    """None: nobody says, because no daemon runs."""


@dataclass(frozen=True)
class Overview:
    """All of it at one moment."""

    name: str
    preset: str
    dashboard: str
    """Its address."""
    running: bool
    at: float
    processes: tuple[ProcessLine, ...]
    cohorts: tuple[CohortLine, ...]
    devices: DeviceCounts
    refusals: Mapping[str, int]
    spend: PrivacySpend
    policy_epsilon: float
    policy_delta: float
    happenings: tuple[Happening, ...]

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {"format": "covey-server-status-1", **_finite(asdict(self))}


@dataclass
class History:
    """What happened, read on from where it was read to: the last few, and each cohort's newest accuracy and size."""

    read_to: int = 0
    last: list[Happening] = field(default_factory=list)
    accuracy: dict[str, float] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)

    def read_on(self, store: Store) -> History:
        while more := store.happenings(after=self.read_to, limit=_READ_AT_ONCE):
            self.read_to = more[-1].number
            self.last = [*self.last, *more][-_SHOWN_HAPPENINGS:]
            self.accuracy |= {each.cohort: each.facts["accuracy"] for each in more if _is_tested(each)}
            self.devices |= {each.cohort: each.facts["devices"] for each in more if "devices" in each.facts}
        return self


def read_overview(home: Home, store: Store, history: History, spend: PrivacySpend, now_seconds: float) -> Overview:
    """Read everything anew, but for history, which is read on, and the spend, which takes longer."""
    snapshots, running = read_snapshots(home.run), home.is_running()
    history.read_on(store)
    return Overview(
        name=home.config.federation.name,
        preset=home.config.federation.preset,
        dashboard=home.config.listen.dashboard,
        running=running,
        at=now_seconds,
        processes=tuple(_process(each, now_seconds) for each in snapshots) if running else (),
        cohorts=cohort_lines(store, store.cohorts(), history, now_seconds),
        devices=count_devices(store, snapshots if running else (), now_seconds),
        refusals=dict(store.refusals()),
        spend=spend,
        policy_epsilon=home.config.policy.epsilon,
        policy_delta=home.config.policy.delta,
        happenings=tuple(history.last),
    )


def cohort_lines(
    store: Store, cohorts: Sequence[CohortRecord], history: History, now_seconds: float
) -> tuple[CohortLine, ...]:
    """Cohorts with what is under way for them, in the order of the tree."""
    tasks = Counter((task.cohort, task.state) for task in store.tasks())
    return tuple(
        CohortLine(
            cohort=record.cohort,
            state=record.state.value,
            round=record.round,
            version=record.version,
            out=tasks[record.cohort, TaskState.OUT],
            arrived=tasks[record.cohort, TaskState.ARRIVED],
            needed=record.needed,
            open_seconds=_since(record.opened_at_seconds, now_seconds)
            if record.state is CohortState.TRAINING
            else None,
            accuracy=history.accuracy.get(record.cohort),
            devices=history.devices.get(record.cohort),
        )
        for record in sorted(cohorts, key=lambda each: _place(each.cohort))
    )


def count_devices(store: Store, snapshots: Sequence[Snapshot], now_seconds: float) -> DeviceCounts:
    """How many are enrolled, here, revoked."""
    devices = store.devices()
    connected = [snapshot.gauges.get(("covey_devices_connected", ())) for snapshot in snapshots]
    known = [int(count) for count in connected if count is not None]
    return DeviceCounts(
        enrolled=sum(not each.revoked for each in devices),
        revoked=sum(each.revoked for each in devices),
        seen_lately=sum(
            each.last_seen_seconds is not None and now_seconds - each.last_seen_seconds <= LATELY_SECONDS
            for each in devices
        ),
        connected=sum(known) if known else None,
    )


def _is_tested(happening: Happening) -> bool:
    accuracy = happening.facts.get("accuracy")
    return isinstance(accuracy, int | float) and math.isfinite(accuracy)


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _process(snapshot: Snapshot, now_seconds: float) -> ProcessLine:
    return ProcessLine(
        process=snapshot.process,
        pid=snapshot.pid,
        up_seconds=max(0.0, snapshot.at - snapshot.started_at),
        silent_seconds=max(0.0, now_seconds - snapshot.at),
        rss_bytes=snapshot.rss_bytes,
    )


def _since(then_seconds: float | None, now_seconds: float) -> float | None:
    return None if then_seconds is None else max(0.0, now_seconds - then_seconds)


def _place(cohort: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in cohort.split("."))
