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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import ComeBack, Feedback, Task
from device_sdk.wire.messages import Split as WireSplit
from server_kit.checkpoints import (
    OF_FEDERATION,
    of_cohort,
    pack_cohort,
    pack_federation,
    unpack_cohort,
    unpack_federation,
    unpack_folded,
)
from server_kit.cohort_tree import ROOT
from server_kit.daemon.cohort_rows import fill, standing
from server_kit.daemon.live_fleet import booked, changed
from server_kit.federation import Federation
from server_kit.interfaces import DeviceView, Split
from server_kit.round import CohortState as Cohort
from server_kit.round import MemoryShelf
from server_kit.store.protocol import (
    Asking,
    CohortRecord,
    CohortState,
    Digest,
    FoldState,
    Happening,
    Store,
    TaskState,
)

if TYPE_CHECKING:
    from device_sdk.wire.messages import ServerMessage
    from server_kit.checkpoints import Checkpoints
    from server_kit.daemon.live_desk import LiveDesk
    from server_kit.daemon.live_fleet import LiveFleet
    from server_kit.daemon.pretraining import Pretraining
    from server_kit.federation import Change
    from server_kit.federation_state import FederationState, Plan
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
    federation: Federation = field(init=False)
    _records: dict[CohortId, CohortRecord] = field(default_factory=dict)
    _views: dict[DeviceId, DeviceView] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _endings: int = 0
    """Tasks that had ended without an answer when rows were read last."""
    _idle_since: dict[CohortId, float] = field(default_factory=dict)
    _absent_since: dict[DeviceId, float] = field(default_factory=dict)

    def begin(self, fleet: LiveFleet, pretraining: Pretraining) -> None:
        """Take up the federation where it stands, or found it."""
        self.fleet, self.pretraining = fleet, pretraining
        if not self.store.cohorts():
            self._found()
        self._records = {record.cohort: record for record in self._living()}
        state = self._restored()
        self.federation = Federation(self.plan, fleet, lambda _: MemoryShelf(), state)
        self.federation.least_waiting = self._least_waiting
        fleet.splits = [_split_of(each) for each in self.store.happenings(kind="split", limit=1 << 30)]
        self._tell_desk()

    def step(self) -> None:
        """Do what can be done now."""
        self.learn()
        self.invite()

    def learn(self) -> None:
        """Digest what workers have made."""
        self._bring_feedback(self.desk.presence.taken_newcomers())
        while folds := self.store.folds(FoldState.DONE):
            for fold in folds:
                self._digest(fold)

    def next_look_seconds(self) -> float:
        """When to look again though nothing happens."""
        now = self.clock()
        gathering = (since + self.patience.gather_seconds for since in self._idle_since.values())
        absent = (since + self.patience.absence_seconds for since in self._absent_since.values())
        later = [self.federation.next_deadline(now), *gathering, *absent]
        return min((at for at in later if at > now), default=math.inf)

    def round_of(self, leaf: CohortId) -> int:
        """The round that a cohort is in."""
        return self._records[leaf].round

    # What was: from the store into the engine

    def _found(self) -> None:
        state = Cohort(ROOT, self.plan.fresh_model(0))
        name = self.checkpoints.write(of_cohort(ROOT), 0, pack_cohort(state))
        federation = Federation(self.plan, self.fleet, lambda _: MemoryShelf())
        mine = self.checkpoints.write(OF_FEDERATION, 0, pack_federation(federation.state))
        self.store.digest(Digest(None, mine, cohorts=[CohortRecord(ROOT, 0, 0, name)]))

    def _living(self) -> list[CohortRecord]:
        """Cohorts that train, and those that could again when their children are merged."""
        return [record for record in self.store.all_cohorts() if record.state is not CohortState.MERGED]

    def _restored(self) -> FederationState:
        cohorts = {
            record.cohort: unpack_cohort(
                self.checkpoints.latest(of_cohort(record.cohort), record.checkpoint).packed, self.plan.compute
            )
            for record in self._records.values()
        }
        mine = self.checkpoints.latest(OF_FEDERATION, self.store.federation()).packed
        state = unpack_federation(mine, cohorts, self.plan.compute)
        state.views = {device: DeviceView(**view) for device, view in self.store.views().items()}
        self._views = dict(state.views)
        return state

    def _read_rows(self) -> None:
        """Bring the engine's state up to what the store says."""
        state = self.federation.state
        self._endings = self.desk.endings
        tasks = self.store.tasks()
        self._records |= {record.cohort: record for record in self.store.cohorts()}
        for leaf in self.federation.leaves:
            theirs = [task for task in tasks if task.cohort == leaf]
            fill(state.cohorts[leaf], self._records[leaf], theirs, self.federation.cohort(leaf).pace)
        state.out = {task.device: task.cohort for task in tasks if task.state is TaskState.OUT}
        for task in tasks:
            self._note(task)
        self._noted &= {task.task for task in tasks}

    def _note(self, task: TaskRecord) -> None:
        """Remember how long a device took, once."""
        if task.arrived_at_seconds is None or task.task in self._noted or task.cohort not in self._records:
            return
        self._noted.add(task.task)
        staleness = max(0, self._records[task.cohort].version - task.version)
        self.federation.note(task.device, task.arrived_at_seconds - task.asked_at_seconds, staleness)
        self.meter.observe("covey_answer_seconds", task.arrived_at_seconds - task.asked_at_seconds)

    # What follows from a step

    def _digest(self, fold: FoldRecord) -> None:
        folded = unpack_folded(self.checkpoints.read(fold.report), self.plan.compute)
        self._read_rows()
        self._take_up(fold)
        before = set(self.federation.state.cohorts)
        change = self.federation.digest(folded)
        records = self._rewritten(change, before)
        happenings = [_stepped(fold, folded), *([] if change is None else [_changed(change, self.clock())])]
        self.store.digest(
            Digest(
                step=(fold.cohort, fold.version),
                federation=self._written(),
                cohorts=records,
                moved=self._moved(change),
                views=self._changed_views(),
                feedback=self.fleet.taken_feedback(),
                happenings=happenings,
            )
        )
        self._settle(records)
        self._after_digest(fold, folded, change)

    def _settle(self, records: Sequence[CohortRecord]) -> None:
        """What was learned is durable."""
        self._views = dict(self.federation.state.views)
        self._records |= {record.cohort: record for record in records}
        self.pretraining.settle(self.lease, self.store.federation() or "")

    def _take_up(self, fold: FoldRecord) -> None:
        """The cohort as its worker left it; what structure remembers of it is ours."""
        state = self.federation.state
        made = unpack_cohort(self.checkpoints.read(fold.checkpoint), self.plan.compute)
        kept = state.cohorts[fold.cohort]
        made.clustering, made.asked, made.missed, made.arrived = kept.clustering, kept.asked, kept.missed, kept.arrived
        made.opened_at_seconds, made.needed = kept.opened_at_seconds, kept.needed
        state.cohorts[fold.cohort] = made

    def _rewritten(self, change: Change | None, before: set[CohortId]) -> list[CohortRecord]:
        """Rows of cohorts that the step has made, ended or changed, each with a checkpoint of what is new."""
        federation, records = self.federation, []
        ended = {} if change is None else _ended(change, before - set(federation.state.cohorts))
        for cohort, how in ended.items():
            records.append(replace(self._records[cohort], state=how, opened_at_seconds=None))
        for leaf in federation.leaves:
            known = self._records.get(leaf)
            if change is None and self.plan.strategy.mixing is None:
                continue
            if known is None or known.state is not CohortState.TRAINING or self.plan.strategy.mixing is not None:
                records.append(self._new_record(leaf))
        return records

    def _new_record(self, leaf: CohortId) -> CohortRecord:
        state = self.federation.state.cohorts[leaf]
        name = self.checkpoints.write(of_cohort(leaf), state.version, pack_cohort(state))
        record = CohortRecord(leaf, state.version, state.round, name, facts=self.federation.facts(leaf))
        return standing(state, record)

    def _written(self) -> str:
        state = self.federation.state
        name = self.checkpoints.write(OF_FEDERATION, state.steps, pack_federation(state))
        self.checkpoints.prune(OF_FEDERATION, {name, self.store.federation() or name})
        return name

    def _moved(self, change: Change | None) -> Mapping[str, CohortId]:
        """Tasks whose cohort no longer trains belong to an heir."""
        if change is None:
            return {}
        leaves = set(self.federation.leaves)
        return {
            task.task: self.federation.state.out.get(task.device) or _heir(change, task.device)
            for task in self.store.tasks()
            if task.cohort in self._records and task.cohort not in leaves
        }

    def _changed_views(self) -> dict[DeviceId, dict[str, object]]:
        views = self.federation.state.views
        return {device: asdict(view) for device, view in views.items() if self._views.get(device) != view}

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
        self.checkpoints.prune(of_cohort(fold.cohort), {record.checkpoint for record in self.store.all_cohorts()})
        self.checkpoints.prune(f"report-{fold.cohort}", set(), keep=1)
        self._tidy_models()

    def _bring_feedback(self, devices: set[DeviceId]) -> None:
        for record in self.store.feedback(sorted(devices)) if devices else ():
            self.push(record.device, decode(Feedback, record.message))

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
        told.open_rounds = {leaf: self._records[leaf].round for leaf in leaves}
        self.meter.gauge("covey_cohorts", len(leaves))
        self.meter.fact("leaves", list(leaves))

    # Asking devices

    def invite(self) -> None:
        """Ask devices to train, as many as cohorts want and there are."""
        self._give_up_the_absent()
        now = self.clock()
        self._rest()
        if not self._someone_is_wanted(now):
            return
        self._read_rows()
        if self.store.folds(FoldState.DONE):
            # A worker was faster than we: what it made may change who belongs where.
            return
        if not self.federation.memory.get(FOUNDED):
            self._look_at_the_fleet()
        # Something has happened since we asked last: someone has come.
        self.federation.state.sated.clear()
        with self.meter.timing("covey_invite_seconds"):
            self.federation.invite(now)

    def _someone_is_wanted(self, now_seconds: float) -> bool:
        waiting = len(self.desk.presence.waiting())
        if not waiting or self._is_over():
            return False
        if self.plan.strategy.is_asynchronous or self._endings != self.desk.endings:
            return True
        idle = False
        for leaf in self.federation.leaves:
            cohort = self.federation.cohort(leaf)
            open_now = self._records[leaf].opened_at_seconds is not None
            if not open_now:
                idle = True
                self._idle_since.setdefault(leaf, now_seconds)
            elif cohort.deadline_seconds() <= now_seconds or cohort.wanted(now_seconds) > 0:
                idle = True
        return idle

    def _least_waiting(self, leaf: CohortId) -> int:
        """Fewer and fewer, the longer a cohort has waited: in the end it begins with whom it has."""
        waited = self.clock() - self._idle_since.get(leaf, self.clock())
        if waited >= self.patience.gather_seconds:
            return 1
        return max(1, self.patience.waiting_needed // len(self.federation.leaves))

    def _look_at_the_fleet(self) -> None:
        """Before the first round, once enough devices are here."""
        if len(self.desk.presence.waiting()) < self._least_waiting(ROOT):
            return
        before = set(self.federation.state.cohorts)
        change = self.federation.begin()
        self.federation.memory[FOUNDED] = True
        records = self._rewritten(change, before)
        happenings = [] if change is None else [_changed(change, self.clock())]
        self.store.digest(Digest(None, self._written(), records, views=self._changed_views(), happenings=happenings))
        self._settle(records)
        self._tell_desk()
        if change is not None:
            self.bells.supervisor()

    def book(self, tasks: Sequence[Task], now_seconds: float) -> None:
        """Make tasks durable with their rounds; then, and only then, push them."""
        records = [booked(task, task.model.version, now_seconds) for task in tasks]
        rounds = []
        for leaf in sorted({task.cohort for task in tasks}):
            standing_now = standing(self.federation.state.cohorts[leaf], self._records[leaf])
            rounds.append(replace(standing_now, facts=self.federation.facts(leaf)))
            self._idle_since.pop(leaf, None)
        self.store.ask(Asking(records, rounds))
        self._records |= {record.cohort: record for record in rounds}
        self.hand_out(tasks, records)
        for leaf in {task.cohort for task in tasks}:
            self.bells.worker(leaf)

    def hand_out(self, tasks: Sequence[Task], records: list[TaskRecord]) -> None:
        """Push tasks that are booked. One that does not get through is given again at the next check-in."""
        self.desk.know(records)
        for task in tasks:
            self.desk.presence.busy(task.device)
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
        return rounds > 0 and all(self._records[leaf].round >= rounds for leaf in self.federation.leaves)

    def _rest(self) -> None:
        """All rounds are done: devices need not wait."""
        if self._is_over():
            self.meter.fact("over", value=True)
            for device in self.desk.presence.waiting():
                self.push(device, ComeBack(_REST_SECONDS))
                self.desk.presence.busy(device)


def _ended(change: Change, merged: set[CohortId]) -> dict[CohortId, CohortState]:
    if isinstance(change.decision, Split):
        return {change.decision.cohort: CohortState.SPLIT}
    return dict.fromkeys(sorted(merged), CohortState.MERGED)


def _heir(change: Change, device: DeviceId) -> CohortId:
    if isinstance(change.decision, Split):
        return change.children[change.decision.members.get(device, 0)]
    return change.decision.cohort


def _stepped(fold: FoldRecord, folded: Folded) -> Happening:
    outcome = folded.outcome
    facts = {
        "round": outcome.round,
        "selected": len(outcome.selected),
        "arrived": len(outcome.arrived),
        "seconds": round(outcome.duration_seconds, 3),
        **({} if outcome.accuracy is None else {"accuracy": outcome.accuracy}),
    }
    return Happening("round", fold.at_seconds, fold.cohort, facts)


def _changed(change: Change, now_seconds: float) -> Happening:
    kind = "split" if isinstance(change.decision, Split) else "merge"
    facts = {"children": list(change.children), "why": change.decision.reason}
    return Happening(kind, now_seconds, change.decision.cohort, facts)


def _split_of(happening: Happening) -> WireSplit:
    return WireSplit(happening.cohort, tuple(happening.facts["children"]))
