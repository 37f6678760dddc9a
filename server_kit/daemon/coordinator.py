"""The coordinator: asks devices to train, and learns from every step of every cohort. The only one who shapes the tree.

    wake       a device is ready, a worker has made a model, a deadline has passed
    digest     each step that a worker finished: feedback, maybe a split or a merge
    invite     devices for every cohort that wants some

It keeps nothing that the store does not have. Before it decides, it reads the rows; what it decides is one transaction;
only then is anyone told. Killed anywhere, it begins again with the rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import ComeBack, Feedback, Task
from server_kit.checkpoints import unpack_folded
from server_kit.cohort_tree import ROOT
from server_kit.daemon.child import LONGEST_WAIT_SECONDS
from server_kit.daemon.cohort_rows import standing
from server_kit.daemon.federation_records import FederationRecords
from server_kit.daemon.gathering import Gathering, Patience
from server_kit.daemon.live_fleet import booked, changed
from server_kit.daemon.questions import loss_of
from server_kit.daemon.telling import Homes, change_told, selection_mix, step_told
from server_kit.daemon.tidying import Tidying
from server_kit.errors import StoreConflict
from server_kit.steady_clock import steady_seconds
from server_kit.store.protocol import Asking, CohortRecord, Digest, FoldState, Store

if TYPE_CHECKING:
    from device_sdk.wire.messages import ServerMessage
    from server_kit.checkpoints import Checkpoints
    from server_kit.daemon.device_reports import DeviceReports
    from server_kit.daemon.live_desk import LiveDesk
    from server_kit.daemon.live_fleet import LiveFleet
    from server_kit.daemon.pretraining import Pretraining
    from server_kit.federation import Change, Federation
    from server_kit.federation_state import Plan
    from server_kit.folding import Folded
    from server_kit.interfaces import CohortId, DeviceId
    from server_kit.metrics import Meter
    from server_kit.store.protocol import FoldRecord, Lease, TaskRecord

log = logging.getLogger("covey.server")

FOUNDED = "founded"
_REST_SECONDS = 600.0


@dataclass(frozen=True)
class Bells:
    """How other processes are woken."""

    worker: Callable[[CohortId], None] = lambda _: None
    supervisor: Callable[[], None] = lambda: None


@dataclass
class Coordinator:
    """One federation's mind. All methods are for one thread."""

    store: Store
    checkpoints: Checkpoints
    plan: Plan
    desk: LiveDesk
    push: Callable[[DeviceId, ServerMessage], bool]
    bells: Bells
    meter: Meter
    lease: Lease
    patience: Patience = field(default_factory=Patience)
    clock: Callable[[], float] = steady_seconds
    fleet: LiveFleet = field(init=False)
    pretraining: Pretraining = field(init=False)
    reports: DeviceReports | None = None
    loss_epsilon: str = "0.25"
    """What it costs a device to tell its loss, where the strategy asks for it."""
    federation: Federation = field(init=False)
    _kept: FederationRecords = field(init=False)
    _gathering: Gathering = field(init=False)
    _tidying: Tidying = field(init=False)
    _homes: Homes = field(default_factory=Homes)

    def begin(self, fleet: LiveFleet, pretraining: Pretraining) -> None:
        """Take up the federation where it stands, or found it."""
        self.fleet, self.pretraining = fleet, pretraining
        fleet.taken_feedback()
        self._kept = FederationRecords(self.store, self.checkpoints, self.plan, self._heard)
        self.federation = self._kept.open(fleet, self.clock())
        self._gathering = Gathering(self._kept, self.desk, self.patience, self.clock)
        self._tidying = Tidying(self._kept, self.desk.models, fleet.writer)
        self.federation.least_waiting = self._gathering.least_waiting
        fleet.splits = self._kept.splits()
        pretraining.settle(self.federation.state.views)
        self._tell_desk()

    def adopt(self, plan: Plan, patience: Patience) -> None:
        """Go on with other settings."""
        self.patience = self._gathering.patience = patience
        self.plan = self._kept.plan = self.federation.plan = plan

    def step(self) -> None:
        """Do what can be done now."""
        # Whoever checks in while we are at it makes us look again.
        self.desk.told.wake_from = 0
        self.learn()
        while not self.invite():
            self.learn()
        self._tidying.tidy()
        self.desk.told.wake_from = self._gathering.wake_from()

    def learn(self) -> None:
        """Digest what workers have made."""
        self._bring_feedback(self.desk.presence.taken_newcomers())
        while folds := self.store.folds(FoldState.DONE):
            try:
                self._digest(folds[0])
            except StoreConflict:
                # A worker has made another model meanwhile, and what we decided did not count with it.
                self.begin(self.fleet, self.pretraining)

    def next_look_seconds(self) -> float:
        """When to look again though nothing happens."""
        return self._gathering.next_look_seconds()

    def round_of(self, leaf: CohortId) -> int:
        """The round that a cohort is in."""
        return self._kept.records[leaf].round

    def _read_rows(self) -> None:
        """Bring the engine's state up to what the store says."""
        self._gathering.endings = self.desk.endings
        self._kept.read_rows()

    def _settle(self, records: Sequence[CohortRecord]) -> None:
        """What was learned is durable."""
        self._kept.remember(records)
        self.pretraining.settle(self.federation.state.views)

    def _heard(self, seconds: float) -> None:
        self.meter.observe("covey_answer_seconds", seconds)

    # What follows from a step

    def _digest(self, fold: FoldRecord) -> None:
        """Learn from a step."""
        if fold.cohort not in self.federation.leaves:
            # It was merged with another while its worker made this model, which is in the merged one.
            self.store.digest(Digest((fold.cohort, fold.version), self.store.federation() or ""))
            return
        folded = unpack_folded(self.checkpoints.read(fold.report), self.plan.compute)
        self._read_rows()
        self._kept.take_up(fold, self._others_done(fold))
        before = set(self.federation.state.cohorts)
        self._homes.note(folded.outcome.selected, fold.cohort)
        mix = selection_mix(folded.outcome, self.federation.state.views)
        self.fleet.digesting = fold.tasks
        change = self.federation.digest(folded)
        records = self._kept.rewritten(change, before)
        happenings = [step_told(fold, folded.outcome, self._homes.size(fold.cohort), mix)]
        if change is not None:
            happenings.append(change_told(change, self.clock()))
        if self.reports is not None:
            happenings += self.reports.collected(fold.cohort, self.clock())
        self.store.digest(
            Digest(
                step=(fold.cohort, fold.version),
                federation=self._kept.written(),
                cohorts=records,
                moved=self._kept.moved(change),
                ended=self.pretraining.ended(self.federation.state.views),
                views=self._kept.changed_views(),
                feedback=self.fleet.taken_feedback(),
                happenings=happenings,
            )
        )
        self._settle(records)
        self._after_digest(fold, folded, change)

    def _others_done(self, fold: FoldRecord) -> list[FoldRecord]:
        """Steps that wait for their turn; read after the rows, which must name no model that is not taken up."""
        if len(self.federation.leaves) == 1:
            return []
        return [other for other in self.store.folds(FoldState.DONE) if other.cohort != fold.cohort]

    def _after_digest(self, fold: FoldRecord, folded: Folded, change: Change | None) -> None:
        """Tell whom it concerns."""
        outcome = folded.outcome
        self.meter.count("covey_rounds_total", cohort=fold.cohort)
        self.meter.observe("covey_round_seconds", outcome.duration_seconds, cohort=fold.cohort)
        log.info("a cohort has a new model", extra={"cohort": fold.cohort, "round": outcome.round})
        self._tell_desk()
        # Feedback is about the tree as it was.
        self._bring_feedback(self.desk.presence.here() & set(outcome.arrived))
        if change is not None:
            log.info(
                "the cohorts have changed", extra={"cohort": change.decision.cohort, "why": change.decision.reason}
            )
            message = changed(self.fleet, self.federation.leaves)
            for device in self.desk.presence.here():
                self.push(device, message)
            self.bells.supervisor()
        elif self.reports is not None:
            state = self.federation.state.cohorts[fold.cohort]
            model = self.fleet.writer.model(fold.cohort, state.version, state.model)
            self.reports.ask(fold.cohort, outcome.round, model, outcome.arrived)
        self._tidying.after(fold)

    def _bring_feedback(self, devices: set[DeviceId]) -> None:
        for record in self.store.feedback(sorted(devices)) if devices else ():
            self.push(record.device, decode(Feedback, record.message))

    def _tell_desk(self) -> None:
        leaves = self.federation.leaves
        told = self.desk.told
        told.cohorts = self.fleet.cohorts(leaves)
        told.gives_feedback = self.plan.strategy.formation.wants.feedback
        told.open_rounds = {leaf: self._kept.records[leaf].round for leaf in leaves}
        self.meter.gauge("covey_cohorts", len(leaves))
        self.meter.fact("leaves", list(leaves))
        deadline = self.plan.strategy.pace(self.plan.participants, len(leaves)).deadline_seconds
        self.meter.fact("deadline_seconds", deadline if math.isfinite(deadline) else None)

    # Asking devices

    def invite(self) -> bool:
        """Ask devices to train, as many as cohorts want and there are. False: there is a step to learn from first."""
        self._gathering.give_up_the_absent()
        now = self.clock()
        self._rest()
        if not self._gathering.someone_is_wanted(now):
            return True
        self._read_rows()
        if self.store.folds(FoldState.DONE):
            # What a worker has made meanwhile may change who belongs where.
            return False
        if not self.federation.memory.get(FOUNDED) and not self._look_at_the_fleet():
            return True
        # Something has happened since we asked last: someone has come.
        self.federation.state.sated.clear()
        try:
            with self.meter.timing("covey_invite_seconds"):
                self.federation.invite(now)
        except StoreConflict:
            # A worker was faster than we. Nobody was asked.
            return False
        return True

    def _look_at_the_fleet(self) -> bool:
        """Before the first round, once enough devices are here; whether they are."""
        if self.desk.presence.num_waiting() < self._gathering.least_waiting(ROOT):
            return False
        before = set(self.federation.state.cohorts)
        change = self.federation.begin()
        self.federation.memory[FOUNDED] = True
        records = self._kept.rewritten(change, before)
        happenings = [] if change is None else [change_told(change, self.clock())]
        self.store.digest(
            Digest(
                None,
                self._kept.written(),
                records,
                views=self._kept.changed_views(),
                happenings=happenings,
                ended=self.pretraining.ended(self.federation.state.views),
            )
        )
        self._settle(records)
        self._tell_desk()
        if change is not None:
            self.bells.supervisor()
        return True

    def book(self, tasks: Sequence[Task], now_seconds: float) -> None:
        """Make tasks durable with their rounds; then, and only then, push them."""
        records = [booked(task, task.model.version, now_seconds) for task in tasks]
        rounds = []
        for leaf in sorted({task.cohort for task in tasks}):
            state = self.federation.state.cohorts[leaf]
            standing_now = standing(state, self._kept.records[leaf])
            rounds.append(replace(standing_now, facts=self.federation.facts(leaf)))
            self._gathering.opened(leaf)
            if not self.plan.strategy.is_asynchronous:
                self.desk.told.out_when_due[leaf] = len(state.asked) + len(state.arrived) - state.needed
        self.store.ask(Asking(records, rounds))
        self._kept.records |= {record.cohort: record for record in rounds}
        self.hand_out(tasks, records)
        for leaf in {task.cohort for task in tasks}:
            if self.federation.cohort(leaf).pace.deadline_seconds < LONGEST_WAIT_SECONDS:
                # Otherwise it looks by itself before the deadline has passed.
                self.bells.worker(leaf)

    def hand_out(self, tasks: Sequence[Task], records: list[TaskRecord]) -> None:
        """Push tasks that are booked. One that does not get through is given again at the next check-in."""
        self.desk.know(records, tasks)
        for task in tasks:
            self.desk.presence.busy(task.device)
            if self.plan.strategy.reports_loss:
                # Before the task, so that the answer is here when the update is folded.
                self.push(task.device, loss_of(task.model, self.loss_epsilon).to(task.device, task.deadline_seconds))
            self.push(task.device, task)
        self.meter.count("covey_tasks_total", len(tasks))

    def _rest(self) -> None:
        """All rounds are done: devices need not wait."""
        if self._gathering.is_over():
            self.meter.fact("over", value=True)
            for device in self.desk.presence.waiting():
                self.push(device, ComeBack(_REST_SECONDS))
                self.desk.presence.busy(device)
