"""What a simulated run leaves behind: how good it was along the way, what happened to cohorts, who got what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server_kit.interfaces import CohortId, DeviceId
from server_kit.simulation.fairness import AccuracySpread
from server_kit.simulation.metrics import Progress


@dataclass(frozen=True)
class CohortPoint:
    """One cohort at one evaluation."""

    devices: int
    accuracy: float
    """Mean over its devices; NaN where none of them could be tested."""
    version: int


@dataclass(frozen=True)
class Point:
    """A run at one evaluation: every device is tested with the model of its cohort."""

    progress: Progress
    spread: AccuracySpread
    cohorts: Mapping[CohortId, CohortPoint]
    agreement: float | None = None
    """Adjusted Rand index of the clusters with the true groups, where there are any."""
    epsilon: float | None = None
    """The most that any device has spent so far; None without privacy terms."""
    backdoor: float | None = None
    """The share of test records with a backdoor's trigger that are called by its target; None without a backdoor."""


@dataclass(frozen=True)
class Happening:
    """A change in the structure of the federation."""

    kind: str
    """`founded`, `split`, `merged` or `clustered`."""
    round: int
    seconds: float
    cohort: CohortId
    children: tuple[CohortId, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """One run with one seed."""

    preset: str
    seed: int
    points: tuple[Point, ...]
    happenings: tuple[Happening, ...] = ()
    device_accuracies: tuple[float, ...] = ()
    """At the end, one for each device; NaN for one without test samples."""
    cohort_of: Mapping[DeviceId, CohortId] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)

    @property
    def curve(self) -> tuple[Progress, ...]:
        """What the metrics of `metrics` work on."""
        return tuple(point.progress for point in self.points)
