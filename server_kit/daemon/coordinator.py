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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import ComeBack, Feedback, Task
from server_kit.checkpoints import of_cohort, unpack_folded
from server_kit.cohort_tree import ROOT
from server_kit.daemon.child import LONGEST_WAIT_SECONDS
from server_kit.daemon.cohort_rows import standing
from server_kit.daemon.cohort_worker import report_line
from server_kit.daemon.federation_records import FederationRecords
from server_kit.daemon.live_fleet import booked, changed
from server_kit.daemon.questions import loss_of
from server_kit.daemon.telling import Homes, change_told, selection_mix, step_told
from server_kit.errors import StoreConflict
from server_kit.store.protocol import Asking, CohortRecord, CohortState, Digest, FoldState, Store, TaskState

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
_MANY_MODELS = 64


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
    clock: Callable[[], float] = time.time
    fleet: LiveFleet = field(init=False)
    pretraining: Pretraining = field(init=False)
    reports: DeviceReports | None = None
    loss_epsilon: str = "0.25"
    """What it costs a device to tell its loss, where the strategy asks for it."""
    federation: Federation = field(init=False)
    _kept: FederationRecords = field(init=False)
    _endings: int = 0
    """Tasks that had ended without an answer when rows were read last."""
    _homes: Homes = field(default_factory=Homes)
    _idle_since: dict[CohortId, float] = field(default_factory=dict)
    _absent_since: dict[DeviceId, float] = field(default_factory=dict)
    _untidy: list[FoldRecord] = field(default_factory=list)
    """Steps after which files are left that nobody needs."""

    def begin(self, fleet: LiveFleet, pretraining: Pretraining) -> None:
        """Take up the federation where it stands, or found it."""
        self.fleet, self.pretraining = fleet, pretraining
        fleet.taken_feedback()
        self._kept = FederationRecords(self.store, self.checkpoints, self.plan, self._heard)
        self.federation = self._kept.open(fleet)
        self.federation.least_waiting = self._least_waiting
        fleet.splits = self._kept.splits()
        pretraining.settle(self.federation.state.views)
        self._tell_desk()

    def adopt(self, plan: Plan, patience: Patience) -> None:
        """Go on with other settings."""
        self.patience = patience
        self.plan = self._kept.plan = self.federation.plan = plan

    def step(self) -> None:
        """Do what can be done now."""
        # Whoever checks in while we are at it makes us look again.
        self.desk.told.wake_from = 0
        self.learn()
        while not self.invite():
            self.learn()
        self._tidy()
        self.desk.told.wake_from = self._wake_from()

    def learn(self) -> None:
        """Digest what workers have made."""
        self._bring_feedback(self.desk.presence.taken_newcomers())
        while folds := self.store.folds(FoldState.DONE):
            try:
                self._digest(folds[0], folds[1:])
            except StoreConflict:
                # A worker has made another model meanwhile, and what we decided did not count with it.
                self.begin(self.fleet, self.pretraining)

    def next_look_seconds(self) -> float:
        """When to look again though nothing happens."""
        now = self.clock()
        gathering = (since + self.patience.gather_seconds for since in self._idle_since.values())
        absent = (since + self.patience.absence_seconds for since in self._absent_since.values())
        later = [self.federation.next_deadline(now), *gathering, *absent]
        return min((at for at in later if at > now), default=math.inf)

    def round_of(self, leaf: CohortId) -> int:
        """The round that a cohort is in."""
        return self._kept.records[leaf].round

    def _read_rows(self) -> None:
        """Bring the engine's state up to what the store says."""
        self._endings = self.desk.endings
        self._kept.read_rows()

    def _settle(self, records: Sequence[CohortRecord]) -> None:
        """What was learned is durable."""
        self._kept.remember(records)
        self.pretraining.settle(self.federation.state.views)

    def _heard(self, seconds: float) -> None:
        self.meter.observe("covey_answer_seconds", seconds)

    # What follows from a step

    def _digest(self, fold: FoldRecord, others: Sequence[FoldRecord]) -> None:
        """Learn from a step; `others` are done as well and wait for their turn."""
        if fold.cohort not in self.federation.leaves:
            # It was merged with another while its worker made this model, which is in the merged one.
            self.store.digest(Digest((fold.cohort, fold.version), self.store.federation() or ""))
            return
        folded = unpack_folded(self.checkpoints.read(fold.report), self.plan.compute)
        self._read_rows()
        self._kept.take_up(fold, others)
        before = set(self.federation.state.cohorts)
        self._homes.note(folded.outcome.selected, fold.cohort)
        mix = selection_mix(folded.outcome, self.federation.state.views)
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
        self._untidy.append(fold)

    def _bring_feedback(self, devices: set[DeviceId]) -> None:
        for record in self.store.feedback(sorted(devices)) if devices else ():
            self.push(record.device, decode(Feedback, record.message))

    def _tidy(self) -> None:
        """Delete what steps have left behind, once devices have their next tasks: nobody waits for it."""
        folds, self._untidy = self._untidy, []
        for fold in folds:
            self._tidy_checkpoints(fold)
        if folds:
            self._kept.prune()
            self._tidy_models()

    def _tidy_checkpoints(self, fold: FoldRecord) -> None:
        """Keep the last few of a cohort that trains, and nothing of those that are gone."""
        records = self.store.all_cohorts()
        self.checkpoints.prune(of_cohort(fold.cohort), {record.checkpoint for record in records})
        # Up to this one: the worker may have written the next already.
        self.checkpoints.prune(report_line(fold.cohort), (fold.report,), keep=0)
        for record in records:
            if record.state is CohortState.MERGED:
                self.checkpoints.prune(of_cohort(record.cohort), (), keep=0)

    def _tidy_models(self) -> None:
        """Forget models that no task and no cohort refers to."""
        if self.desk.models.count() <= _MANY_MODELS:
            return
        tasks = [decode(Task, record.message) for record in self.store.tasks(None, TaskState.OUT, TaskState.ARRIVED)]
        wanted = {task.model.blob.sha256 for task in tasks} | self.fleet.writer.written()
        self.desk.models.keep_only(wanted | {task.objective.mask.sha256 for task in tasks if task.objective.mask})

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
        self._give_up_the_absent()
        now = self.clock()
        self._rest()
        if not self._someone_is_wanted(now):
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

    def _someone_is_wanted(self, now_seconds: float) -> bool:
        # With fewer no round is opened, and to find that out by asking takes a while.
        waiting = self.desk.presence.num_waiting()
        if not waiting or self._is_over():
            return False
        for leaf in self._idle():
            self._idle_since.setdefault(leaf, now_seconds)
        return waiting >= self._waiting_needed(now_seconds)

    def _wake_from(self) -> float:
        """How many must wait for a further one to be of interest to us."""
        if self._is_over() or any(leaf not in self._idle_since for leaf in self._idle()):
            return 1
        return self._waiting_needed(self.clock())

    def _waiting_needed(self, now_seconds: float) -> float:
        """How many must wait for some of them to be asked; no number is enough while open rounds want nobody."""
        if self.plan.strategy.is_asynchronous or self._endings != self.desk.endings:
            return 1
        idle = self._idle()
        for leaf in self.federation.leaves:
            cohort = self.federation.cohort(leaf)
            if leaf not in idle and (cohort.deadline_seconds() <= now_seconds or cohort.wanted(now_seconds) > 0):
                return 1
        return min((self._least_waiting(leaf) for leaf in idle), default=math.inf)

    def _idle(self) -> set[CohortId]:
        """The leaves without an open round."""
        return {leaf for leaf in self.federation.leaves if self._kept.records[leaf].opened_at_seconds is None}

    def _least_waiting(self, leaf: CohortId) -> int:
        """Fewer and fewer, the longer a cohort has waited: in the end it begins with whom it has."""
        waited = self.clock() - self._idle_since.get(leaf, self.clock())
        if waited >= self.patience.gather_seconds:
            return 1
        return max(1, self.patience.waiting_needed // len(self.federation.leaves))

    def _look_at_the_fleet(self) -> bool:
        """Before the first round, once enough devices are here; whether they are."""
        if self.desk.presence.num_waiting() < self._least_waiting(ROOT):
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
            self._idle_since.pop(leaf, None)
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
        self.desk.know(records)
        for task in tasks:
            self.desk.presence.busy(task.device)
            if self.plan.strategy.reports_loss:
                # Before the task, so that the answer is here when the update is folded.
                self.push(task.device, loss_of(task.model, self.loss_epsilon).to(task.device, task.deadline_seconds))
            self.push(task.device, task)
        self.meter.count("covey_tasks_total", len(tasks))

    def _give_up_the_absent(self) -> None:
        """Devices that were asked and have not been here for a while make room for others."""
        now, here = self.clock(), self.desk.presence.here()
        out = {task.device: task for task in self.desk.out()}
        self._absent_since = {device: self._absent_since.get(device, now) for device in out if device not in here}
        for device, since in list(self._absent_since.items()):
            if now - since >= self.patience.absence_seconds:
                self.desk.give_up(out[device])
                del self._absent_since[device]

    def _is_over(self) -> bool:
        rounds = self.patience.rounds
        return rounds > 0 and all(self._kept.records[leaf].round >= rounds for leaf in self.federation.leaves)

    def _rest(self) -> None:
        """All rounds are done: devices need not wait."""
        if self._is_over():
            self.meter.fact("over", value=True)
            for device in self.desk.presence.waiting():
                self.push(device, ComeBack(_REST_SECONDS))
                self.desk.presence.busy(device)
