"""A cohort's worker, in a process of its own: when enough updates lie in the store, it makes the next model.

    decide     which updates, in one transaction; whoever repeats the step takes the same
    fold       the engine's own code, one update in memory at a time
    put away   checkpoint and report, then one transaction that makes them true

Killed at any point, its successor repeats the step with the updates that are stored. It needs neither coordinator nor
gateway for a step that it can make; for the next one it waits until the coordinator has looked at this one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import Task
from server_kit.checkpoints import of_cohort, pack_cohort, pack_folded, unpack_cohort
from server_kit.daemon.cohort_rows import fill, folded, late_tasks, ticket
from server_kit.daemon.questions import answers_to, loss_of
from server_kit.daemon.stored_updates import StoredUpdates, UnreadableUpdate, count_unreadable
from server_kit.errors import CheckpointError, StoreConflict
from server_kit.folding import fold
from server_kit.round import Cohort
from server_kit.selection import Uniform
from server_kit.steady_clock import steady_seconds
from server_kit.store.protocol import CohortState, FoldRecord, FoldState, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server_kit.checkpoints import Checkpoints
    from server_kit.daemon.evaluating import Evaluate
    from server_kit.daemon.model_shelf import ModelShelf
    from server_kit.federation_state import Plan
    from server_kit.interfaces import CohortId
    from server_kit.metrics import Meter
    from server_kit.round import CohortState as EngineState
    from server_kit.round import Pace, Ticket
    from server_kit.store.protocol import CohortRecord, Lease, Store, TaskId, TaskRecord

log = logging.getLogger("covey.server")


def report_line(cohort: CohortId) -> str:
    """Where a worker puts what the coordinator needs to know of its steps."""
    return f"report-{cohort}"


@dataclass
class CohortWorker:
    """Works for one cohort under a lease, which its caller keeps renewed."""

    cohort: CohortId
    store: Store
    checkpoints: Checkpoints
    models: ModelShelf
    plan: Plan
    lease: Lease
    meter: Meter
    evaluate: Evaluate | None = None
    clock: Callable[[], float] = steady_seconds
    loss_epsilon: str = "0.25"
    """As the coordinator asks for losses; an answer counts only for its own question."""
    _held: tuple[str, EngineState] | None = field(default=None)

    def step(self) -> bool:
        """Make the next model if there is enough for it; whether it did."""
        record = self.record()
        if record is None or self._awaits_digest(record):
            return False
        try:
            return self._step(record)
        except (CheckpointError, StoreConflict):
            if self.record() is not None:
                raise
            # The cohort was merged while we worked: what we had belongs to others now.
            log.info("a step was given up", extra={"cohort": self.cohort})
            return False

    def _step(self, record: CohortRecord) -> bool:
        tasks = self.store.tasks(self.cohort)
        begun = self._begun(record)
        if begun is None and not self._due(record, tasks):
            self._end_late(record, tasks)
            return False
        decided = begun or self._decide(record, tasks)
        with self.meter.timing("covey_fold_seconds", cohort=self.cohort):
            self._fold(record, decided, tasks)
        return True

    def record(self) -> CohortRecord | None:
        """The cohort as it stands, None if it trains no more."""
        found = next((each for each in self.store.cohorts() if each.cohort == self.cohort), None)
        return None if found is None or found.state is not CohortState.TRAINING else found

    def next_look_seconds(self) -> float:
        """When a step may be due though nothing arrives."""
        record = self.record()
        if record is None or record.opened_at_seconds is None:
            return math.inf
        deadline = record.opened_at_seconds + self._pace.deadline_seconds
        # Once it has passed, the next arrival is what to wait for.
        return deadline if deadline > self.clock() else math.inf

    @property
    def _pace(self) -> Pace:
        # How many are wanted depends on the other cohorts; what follows from those who came does not.
        return self.plan.strategy.pace(self.plan.participants, 1)

    def _awaits_digest(self, record: CohortRecord) -> bool:
        return any(each.cohort == record.cohort for each in self.store.folds(FoldState.DONE))

    def _begun(self, record: CohortRecord) -> FoldRecord | None:
        begun = (each for each in self.store.folds(FoldState.BEGUN) if each.cohort == self.cohort)
        return next((each for each in begun if each.version == record.version), None)

    def _due(self, record: CohortRecord, tasks: Sequence[TaskRecord]) -> bool:
        state = self._state(record)
        fill(state, record, tasks, self._pace)
        return self._at_work(state, {}).due(self.clock())

    def _end_late(self, record: CohortRecord, tasks: Sequence[TaskRecord]) -> None:
        """The next step ends what came too late; where no round is open there may never be one."""
        late = [task.task for task in late_tasks(record, tasks, self._pace)]
        if late and self._state(record).opened_at_seconds is None:
            self.store.end_late(self.cohort, late, self.lease)

    def _decide(self, record: CohortRecord, tasks: Sequence[TaskRecord]) -> FoldRecord:
        chosen = tuple(task.task for task in folded(record, tasks, self._pace))
        late = [task.task for task in late_tasks(record, tasks, self._pace)]
        wanted = FoldRecord(self.cohort, record.version, chosen, self.clock())
        return self.store.begin_fold(wanted, late, self.lease)

    def _fold(self, record: CohortRecord, decided: FoldRecord, tasks: Sequence[TaskRecord]) -> None:
        """Make the next model, without updates whose bytes say nothing; the step repeats itself for each of those."""
        unreadable: set[TaskId] = set()
        while True:
            try:
                return self._fold_all_but(unreadable, record, decided, tasks)
            except UnreadableUpdate as fault:
                unreadable.add(fault.record.task)
                count_unreadable(self.store, fault, self.clock())

    def _fold_all_but(
        self, unreadable: set[TaskId], record: CohortRecord, decided: FoldRecord, tasks: Sequence[TaskRecord]
    ) -> None:
        state = self._state(record)
        # From here on it is no longer the checkpoint's, until the next one is written.
        self._held = None
        fill(state, record, tasks, self._pace)
        chosen = {task.task: task for task in tasks if task.state is TaskState.ARRIVED}
        used = [chosen[task] for task in decided.tasks if task not in unreadable]
        tickets = {ticket(task, record.version): task for task in used}
        state.arrived = list(tickets)
        cohort = self._at_work(state, tickets)
        made = fold(cohort, self.plan.strategy, decided.at_seconds, dict(record.facts))
        outcome = replace(made.outcome, latencies_seconds=_latencies(used))
        if self.evaluate is not None and (tested := self.evaluate(state.model, state.round)) is not None:
            outcome = replace(outcome, accuracy=tested.accuracy, loss=tested.loss)
        made = replace(made, outcome=outcome)
        name = self.checkpoints.write(of_cohort(self.cohort), state.version, pack_cohort(state))
        report = self.checkpoints.write(report_line(self.cohort), state.version, pack_folded(made))
        after = replace(
            record,
            version=state.version,
            round=state.round,
            checkpoint=name,
            opened_at_seconds=state.opened_at_seconds,
        )
        self.store.finish_fold(replace(decided, checkpoint=name, report=report), self.lease, after)
        self._held = (name, state)

    def _state(self, record: CohortRecord) -> EngineState:
        """The cohort of the newest checkpoint, from memory if it is the one we made."""
        if self._held is None or self._held[0] != record.checkpoint:
            found = self.checkpoints.latest(of_cohort(self.cohort), record.checkpoint)
            self._held = (record.checkpoint, unpack_cohort(found.packed, self.plan.compute))
        return self._held[1]

    def _at_work(self, state: EngineState, tasks: dict[Ticket, TaskRecord]) -> Cohort:
        strategy = self.plan.strategy
        shelf = StoredUpdates(
            self.store,
            self.models,
            self.plan.layout,
            self.plan.compute,
            tasks,
            needs_base=strategy.is_asynchronous,
            losses=self._losses(list(tasks.values())) if strategy.reports_loss else None,
        )
        # Whom to ask is the coordinator's affair.
        return Cohort(state, Uniform(), strategy.aggregator, self._pace, shelf, self.plan.seed)

    def _losses(self, tasks: Sequence[TaskRecord]) -> dict[str, float]:
        """What devices told of the models that they were handed, as far as they did."""
        models = {decoded.model.blob.sha256: decoded.model for decoded in (decode(Task, t.message) for t in tasks)}
        devices = [task.device for task in tasks]
        told: dict[str, float] = {}
        for model in models.values():
            told |= answers_to(self.store, loss_of(model, self.loss_epsilon), devices)
        return told


def _latencies(tasks: Sequence[TaskRecord]) -> dict[str, float]:
    return {
        task.device: max(0.0, task.arrived_at_seconds - task.asked_at_seconds)
        for task in tasks
        if task.arrived_at_seconds is not None
    }
