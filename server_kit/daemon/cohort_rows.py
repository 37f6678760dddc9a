"""A cohort between its checkpoints: who is out and what has arrived, from the store's rows to the engine's state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from server_kit.round import Asked, Ticket
from server_kit.store.protocol import TaskState

if TYPE_CHECKING:
    from server_kit.round import CohortState, Pace
    from server_kit.store.protocol import CohortRecord, TaskRecord


def fill(state: CohortState, record: CohortRecord, tasks: Iterable[TaskRecord], pace: Pace) -> None:
    """Put into a cohort's state what its rows say. `tasks` are its own, those that are out or have arrived.

    Out for an earlier round means missed, where there are rounds. An update of an earlier round is late: it is folded
    with its staleness if the pace wants that, and is left out here otherwise (`late` names those).
    """
    tasks = list(tasks)
    state.version, state.round = record.version, record.round
    state.opened_at_seconds, state.needed = record.opened_at_seconds, record.needed
    out = [task for task in tasks if task.state is TaskState.OUT]
    in_rounds = pace.in_flight is None
    state.asked = {task.device: _asked(task) for task in out if not (in_rounds and task.round < record.round)}
    state.missed = {task.device: _asked(task) for task in out if in_rounds and task.round < record.round}
    state.arrived = [ticket(task, record.version) for task in folded(record, tasks, pace)]
    if in_rounds and not state.asked and not state.arrived:
        # Nobody is left of this round: another may begin.
        state.opened_at_seconds = None


def folded(record: CohortRecord, tasks: Iterable[TaskRecord], pace: Pace) -> list[TaskRecord]:
    """The arrived tasks that the next model is made of, in the order of arrival."""
    late = {task.task for task in late_tasks(record, tasks, pace)}
    arrived = [task for task in tasks if task.state is TaskState.ARRIVED and task.task not in late]
    return sorted(arrived, key=lambda task: task.arrival or 0)


def late_tasks(record: CohortRecord, tasks: Iterable[TaskRecord], pace: Pace) -> list[TaskRecord]:
    """The arrived tasks that came after their round and are not used."""
    if pace.in_flight is not None or pace.fold_late:
        return []
    return [task for task in tasks if task.state is TaskState.ARRIVED and task.round < record.round]


def ticket(task: TaskRecord, version: int) -> Ticket:
    """An arrived update in the eyes of the engine."""
    return Ticket(task.device, task.version, version - task.version, task.asked_at_seconds)


def standing(state: CohortState, record: CohortRecord) -> CohortRecord:
    """The row with the round as the engine left it."""
    return replace(record, opened_at_seconds=state.opened_at_seconds, needed=state.needed)


def _asked(task: TaskRecord) -> Asked:
    return Asked(task.version, task.asked_at_seconds)
