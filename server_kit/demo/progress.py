"""How far the federation is, read from its store as an operator would, and how good its models are by now."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from server_kit.cohort_tree import lineage
from server_kit.demo.device_process import name_file
from server_kit.privacy_spend import stored_spend
from server_kit.snapshots import read_snapshots
from server_kit.store.protocol import CohortState, TaskState

if TYPE_CHECKING:
    from pathlib import Path

    from server_kit.commands.opened import Opened
    from server_kit.demo.measuring import Accuracies, Examiner
    from server_kit.layout import Layout
    from server_kit.store.protocol import CohortRecord, Happening

_SPEND_EVERY_SECONDS = 3.0
Work = tuple[int, str, int]
"""A device, the cohort that asked it, and the version it trained from."""


@dataclass(frozen=True, eq=False)
class Point:
    """One model of one cohort, and for whom it was."""

    cohort: str
    round: int
    members: tuple[int, ...]
    accuracies: Accuracies

    @property
    def accuracy(self) -> float:
        """On the test images of its own devices."""
        return float(self.accuracies[list(self.members)].mean()) if self.members else float("nan")


@dataclass(frozen=True)
class Glance:
    """The federation at one moment."""

    seconds: float
    connected: int
    leaves: tuple[str, ...]
    rounds: Mapping[str, int]
    """Of each cohort that trains."""
    homes: Mapping[int, str]
    """In which cohort each device trained last, or what that was merged into."""
    epsilon: float

    @property
    def round(self) -> int:
        """All cohorts have got so far."""
        return min(self.rounds.values(), default=0)


@dataclass
class Progress:
    """Looks again and again, and remembers what it saw."""

    federation: Opened
    layout: Layout
    examiner: Examiner
    states: Sequence[Path]
    began_at: float = field(default_factory=time.monotonic)
    points: list[Point] = field(default_factory=list)
    changes: list[Happening] = field(default_factory=list)
    """Splits and merges."""
    spent: list[tuple[int, float]] = field(default_factory=list)
    """By round, the most ε that any device has spent."""
    _examined: set[str] = field(default_factory=set)
    _read_to: int = 0
    _spent_at: float = 0.0

    def look(self) -> Glance:
        records = self.federation.store.all_cohorts()
        rounds = {each.cohort: each.round for each in records if each.state is CohortState.TRAINING}
        tasks = self._tasks()
        latest = {device: cohort for device, cohort, _ in tasks}
        homes = {device: home_of(latest[device], rounds) for device in sorted(latest)}
        for record in records:
            self._examine(record, tasks)
        self._read_on()
        self._note_spend(min(rounds.values(), default=0))
        return Glance(
            time.monotonic() - self.began_at,
            self._connected(),
            tuple(rounds),
            rounds,
            homes,
            self.spent[-1][1] if self.spent else 0.0,
        )

    def newest(self, cohort: str, until_round: int) -> Point | None:
        """The latest model of a cohort that was examined; a cohort that ran ahead is not ahead of the comparison."""
        found = (point for point in reversed(self.points) if point.cohort == cohort and point.round <= until_round)
        return next(found, None)

    def _examine(self, record: CohortRecord, tasks: Sequence[Work]) -> None:
        """Every model that the cohort has had since the last look."""
        from server_kit.checkpoints import of_cohort, unpack_cohort

        checkpoints = self.federation.home.open_checkpoints()
        for name in checkpoints.names(of_cohort(record.cohort)):
            if name in self._examined:
                continue
            state = unpack_cohort(checkpoints.read(name))
            if state.version > record.version:
                break
            self._examined.add(name)
            weights = {tensor: view.numpy() for tensor, view in self.layout.views(state.model).items()}
            # Who trained it, or will train the next from it.
            versions = (state.version - 1, state.version)
            members = {device for device, cohort, version in tasks if cohort == record.cohort and version in versions}
            self.points.append(
                Point(record.cohort, state.round, tuple(sorted(members)), self.examiner.accuracies(weights))
            )

    def _tasks(self) -> list[Work]:
        """All that devices were ever asked for, oldest first."""
        numbers = self._numbers()
        tasks = sorted(self.federation.store.tasks(None, *TaskState), key=lambda task: task.asked_at_seconds)
        return [(numbers[task.device], task.cohort, task.version) for task in tasks if task.device in numbers]

    def _numbers(self) -> dict[str, int]:
        """Devices by their names at the server."""
        found = {}
        for number, state in enumerate(self.states):
            if name_file(state).is_file():
                found[name_file(state).read_text(encoding="ascii")] = number
        return found

    def _read_on(self) -> None:
        for happening in self.federation.store.happenings(after=self._read_to):
            self._read_to = happening.number
            if happening.kind in {"split", "merge"}:
                self.changes.append(happening)

    def _connected(self) -> int:
        gauges = [each.gauges.get(("covey_devices_connected", ())) for each in read_snapshots(self.federation.home.run)]
        return int(sum(gauge for gauge in gauges if gauge is not None))

    def _note_spend(self, round_number: int) -> None:
        now = time.monotonic()
        if now - self._spent_at >= _SPEND_EVERY_SECONDS:
            self.note_spend(round_number)

    def note_spend(self, round_number: int) -> None:
        """Add up the receipts that devices have signed."""
        self._spent_at = time.monotonic()
        delta = self.federation.home.config.policy.delta
        self.spent.append((round_number, stored_spend(self.federation.store, delta).summary.most_epsilon))


def home_of(last: str, training: Collection[str]) -> str:
    """Where a device belongs that trained in this cohort last. After a merge that is the cohort above."""
    return next((cohort for cohort in lineage(last) if cohort in training), last)


def mean_for(accuracies: Accuracies, members: Sequence[int]) -> float:
    """The mean over some devices."""
    return float(np.mean(accuracies[list(members)])) if members else float("nan")
