"""What has happened to each cohort, read on from where it was read to, and thinned so that it never grows large."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server_kit.store.protocol import CohortRecord, Happening, Json, Lookout

_READ_AT_ONCE = 1000
_MOST_POINTS = 600
_MOST_CHANGES = 200
_MIXED_ROUNDS = 20

Point = list[Any]
"""A row of a chart: round, time, then its figures; None where one is not known."""


@dataclass
class Track:
    """One cohort over time."""

    cohort: str
    rounds: list[Point] = field(default_factory=list)
    """round, at, selected, arrived, seconds, answer_seconds, slow_answer_seconds"""
    accuracy: list[Point] = field(default_factory=list)
    """round, at, accuracy, its standard error"""
    loss: list[Point] = field(default_factory=list)
    """round, at, loss"""
    spans: list[list[float | None]] = field(default_factory=list)
    """When it trained: from, to; to is None while it does."""
    devices: int | None = None
    mixes: deque[dict[str, int]] = field(default_factory=lambda: deque(maxlen=_MIXED_ROUNDS))

    @property
    def mix(self) -> dict[str, int]:
        """Whom the selector chose in the last rounds, together."""
        return dict(sum((Counter(mix) for mix in self.mixes), Counter()))

    def begin(self, at_seconds: float) -> None:
        if not self.spans or self.spans[-1][1] is not None:
            self.spans.append([at_seconds, None])

    def end(self, at_seconds: float) -> None:
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = at_seconds

    def add_round(self, at_seconds: float, facts: Json) -> None:
        self.begin(at_seconds - (_number(facts, "seconds") or 0.0))
        names = ("selected", "arrived", "seconds", "answer_seconds", "slow_answer_seconds")
        _add(self.rounds, facts, at_seconds, *names)
        if (devices := _number(facts, "devices")) is not None:
            self.devices = int(devices)
        if isinstance(mix := facts.get("mix"), dict):
            self.mixes.append({str(name): int(count) for name, count in mix.items()})

    def add_quality(self, at_seconds: float, facts: Json) -> None:
        if _number(facts, "accuracy") is not None:
            _add(self.accuracy, facts, at_seconds, "accuracy", "error")
        if _number(facts, "loss") is not None:
            _add(self.loss, facts, at_seconds, "loss")


@dataclass
class Chronicle:
    """All cohorts over time, and how the tree came to its shape. Safe to use from any thread."""

    read_to: int = 0
    tracks: dict[str, Track] = field(default_factory=dict)
    changes: deque[Happening] = field(default_factory=lambda: deque(maxlen=_MOST_CHANGES))
    mutex: threading.RLock = field(default_factory=threading.RLock)

    def read_on(self, store: Lookout) -> None:
        """Take in what is new."""
        with self.mutex:
            while more := store.happenings(after=self.read_to, limit=_READ_AT_ONCE):
                for happening in more:
                    self._take(happening)
                self.read_to = more[-1].number

    def track(self, cohort: str) -> Track:
        """The cohort's; an empty one if nothing has happened to it."""
        with self.mutex:
            return self.tracks.get(cohort) or Track(cohort)

    def _take(self, happening: Happening) -> None:
        takers: dict[str, Callable[[Happening], None]] = {
            "round": self._take_round,
            "tested": self._take_test,
            "split": self._take_split,
            "merge": self._take_merge,
        }
        if happening.cohort and happening.kind in takers:
            takers[happening.kind](happening)

    def _take_round(self, happening: Happening) -> None:
        track = self._own(happening.cohort)
        track.add_round(happening.at_seconds, happening.facts)
        track.add_quality(happening.at_seconds, happening.facts)

    def _take_test(self, happening: Happening) -> None:
        self._own(happening.cohort).add_quality(happening.at_seconds, happening.facts)

    def _take_split(self, happening: Happening) -> None:
        self.changes.append(happening)
        self._own(happening.cohort).end(happening.at_seconds)
        sizes: Sequence[int | None] = happening.facts.get("sizes", ())
        for number, child in enumerate(happening.facts.get("children", ())):
            track = self._own(child)
            track.begin(happening.at_seconds)
            track.devices = sizes[number] if number < len(sizes) else None

    def _take_merge(self, happening: Happening) -> None:
        self.changes.append(happening)
        for cohort, track in self.tracks.items():
            if cohort.startswith(f"{happening.cohort}."):
                track.end(happening.at_seconds)
        self._own(happening.cohort).begin(happening.at_seconds)

    def _own(self, cohort: str) -> Track:
        return self.tracks.setdefault(cohort, Track(cohort))


def in_tree_order(cohorts: Sequence[CohortRecord]) -> list[CohortRecord]:
    """Parents before children, siblings by number."""
    return sorted(cohorts, key=lambda each: [int(part) if part.isdecimal() else 0 for part in each.cohort.split(".")])


def _add(points: list[Point], facts: Json, at_seconds: float, *names: str) -> None:
    points.append([_number(facts, "round"), at_seconds, *(_number(facts, name) for name in names)])
    if len(points) > _MOST_POINTS:
        # The newest stays, of the rest every second one.
        points[:] = points[-1::-2][::-1]


def _number(facts: Json, name: str) -> float | None:
    value = facts.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None
