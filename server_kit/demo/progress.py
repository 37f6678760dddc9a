"""How far the federation is, read from its store as an operator would, and how good its models are by now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from server_kit.demo.device_process import name_file
from server_kit.privacy_spend import privacy_spend
from server_kit.snapshots import read_snapshots
from server_kit.store.protocol import CohortState, TaskState

if TYPE_CHECKING:
    from pathlib import Path

    from server_kit.commands.opened import Opened
    from server_kit.demo.measuring import Accuracies, Examiner, Weights
    from server_kit.layout import Layout
    from server_kit.store.protocol import CohortRecord, Happening

_SPEND_EVERY_SECONDS = 3.0


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
    """In which cohort each device trained last."""
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
    _versions: dict[str, int] = field(default_factory=dict)
    _read_to: int = 0
    _spent_at: float = 0.0

    def look(self) -> Glance:
        records = self.federation.store.all_cohorts()
        leaves = [each for each in records if each.state is CohortState.TRAINING]
        homes = self._homes({each.cohort for each in leaves})
        for record in records:
            self._examine(record, homes)
        self._read_on()
        rounds = {each.cohort: each.round for each in leaves}
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

    def model(self, record: CohortRecord) -> Weights:
        """What a cohort's newest checkpoint holds."""
        from server_kit.checkpoints import of_cohort, unpack_cohort

        found = self.federation.home.open_checkpoints().latest(of_cohort(record.cohort), record.checkpoint)
        return {name: view.numpy() for name, view in self.layout.views(unpack_cohort(found.packed).model).items()}

    def _examine(self, record: CohortRecord, homes: Mapping[int, str]) -> None:
        if not record.checkpoint or self._versions.get(record.cohort) == record.version:
            return
        members = tuple(device for device, home in homes.items() if home == record.cohort)
        point = Point(record.cohort, record.round, members, self.examiner.accuracies(self.model(record)))
        self._versions[record.cohort] = record.version
        self.points.append(point)

    def _homes(self, leaves: set[str]) -> dict[int, str]:
        numbers = self._numbers()
        tasks = sorted(self.federation.store.tasks(None, *TaskState), key=lambda task: task.asked_at_seconds)
        latest = {numbers[task.device]: task.cohort for task in tasks if task.device in numbers}
        return {device: cohort for device, cohort in sorted(latest.items()) if cohort in leaves}

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
        self.spent.append((round_number, privacy_spend(self.federation.store.receipts(), delta).most_epsilon))


def mean_for(accuracies: Accuracies, members: Sequence[int]) -> float:
    """The mean over some devices."""
    return float(np.mean(accuracies[list(members)])) if members else float("nan")
