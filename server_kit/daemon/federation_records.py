"""A federation as the store has it: rows and checkpoints become the engine's state, and its decisions become rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.messages import Split as WireSplit
from server_kit.checkpoints import (
    OF_FEDERATION,
    of_cohort,
    pack_cohort,
    pack_federation,
    unpack_cohort,
    unpack_federation,
)
from server_kit.cohort_tree import ROOT
from server_kit.daemon.cohort_rows import fill, standing
from server_kit.federation import Federation
from server_kit.interfaces import DeviceView, Split
from server_kit.round import CohortState as Cohort
from server_kit.round import MemoryShelf
from server_kit.store.protocol import Asking, CohortRecord, CohortState, Digest, Store, TaskState

if TYPE_CHECKING:
    from server_kit.checkpoints import Checkpoints
    from server_kit.federation import Change
    from server_kit.federation_state import FederationState, Plan
    from server_kit.interfaces import CohortId, DeviceId, Fleet
    from server_kit.store.protocol import FoldRecord, TaskRecord


log = logging.getLogger("covey.server")


@dataclass
class FederationRecords:
    """The engine's federation, and the rows that it was made of."""

    store: Store
    checkpoints: Checkpoints
    plan: Plan
    on_answer: Callable[[float], None] = lambda _: None
    """Hears how long each device took."""
    federation: Federation = field(init=False)
    records: dict[CohortId, CohortRecord] = field(default_factory=dict)
    _views: dict[DeviceId, DeviceView] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)

    def open(self, fleet: Fleet, now_seconds: float) -> Federation:
        """Take up the federation where it stands, or found it."""
        if not self.store.cohorts():
            self._found(fleet)
        self._set_back(now_seconds)
        self.records = {record.cohort: record for record in self._living()}
        self.federation = Federation(self.plan, fleet, lambda _: MemoryShelf(), self._restored())
        return self.federation

    def _set_back(self, now_seconds: float) -> None:
        """A round that was opened in the future was opened by a clock that was ahead: its time begins to run now."""
        ahead = [each for each in self.store.cohorts() if (each.opened_at_seconds or -math.inf) > now_seconds]
        if ahead:
            log.warning("the clock was set back while the server was down; open rounds begin anew to count")
            self.store.ask(Asking((), [replace(each, opened_at_seconds=now_seconds) for each in ahead]))

    def splits(self) -> list[WireSplit]:
        """All that ever happened, oldest first."""
        told = self.store.happenings(kind="split", limit=1 << 30)
        return [WireSplit(each.cohort, tuple(each.facts["children"])) for each in told]

    def _found(self, fleet: Fleet) -> None:
        state = Cohort(ROOT, self.plan.fresh_model(0))
        name = self.checkpoints.write(of_cohort(ROOT), 0, pack_cohort(state))
        federation = Federation(self.plan, fleet, lambda _: MemoryShelf())
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
            for record in self.records.values()
        }
        mine = self.checkpoints.latest(OF_FEDERATION, self.store.federation()).packed
        state = unpack_federation(mine, cohorts, self.plan.compute)
        state.views = {device: DeviceView(**view) for device, view in self.store.views().items()}
        self._views = dict(state.views)
        return state

    def read_rows(self) -> None:
        """Bring the engine's state up to what the store says."""
        state = self.federation.state
        tasks = self.store.tasks()
        self.records |= {record.cohort: record for record in self.store.cohorts()}
        for leaf in self.federation.leaves:
            theirs = [task for task in tasks if task.cohort == leaf]
            fill(state.cohorts[leaf], self.records[leaf], theirs, self.federation.cohort(leaf).pace)
        state.out = {task.device: task.cohort for task in tasks if task.state is TaskState.OUT}
        for task in tasks:
            self._note(task)
        self._noted &= {task.task for task in tasks}

    def _note(self, task: TaskRecord) -> None:
        """Remember how long a device took, once."""
        if task.arrived_at_seconds is None or task.task in self._noted or task.cohort not in self.records:
            return
        self._noted.add(task.task)
        staleness = max(0, self.records[task.cohort].version - task.version)
        # Of a device that was asked before a restart, by a clock that was ahead, we only know that it has answered.
        seconds = max(0.0, task.arrived_at_seconds - task.asked_at_seconds)
        self.federation.note(task.device, seconds, staleness)
        self.on_answer(seconds)

    def remember(self, records: Sequence[CohortRecord]) -> None:
        """What was learned is durable."""
        self._views = dict(self.federation.state.views)
        self.records |= {record.cohort: record for record in records}

    def take_up(self, fold: FoldRecord, others: Sequence[FoldRecord] = ()) -> None:
        """Cohorts as their workers left them; what selection and structure remember of them is ours.

        The `others` wait to be learned from, so their rounds are not over; but whoever merges them needs their models.
        """
        self._take_up(fold)
        for other in others:
            if other.cohort in self.federation.leaves:
                self._take_up(other)
                self.federation.state.cohorts[other.cohort].opened_at_seconds = other.at_seconds

    def _take_up(self, fold: FoldRecord) -> None:
        state = self.federation.state
        made = unpack_cohort(self.checkpoints.read(fold.checkpoint), self.plan.compute)
        kept = state.cohorts[fold.cohort]
        made.clustering, made.selection = kept.clustering, kept.selection
        made.asked, made.missed, made.arrived = kept.asked, kept.missed, kept.arrived
        made.opened_at_seconds, made.needed = kept.opened_at_seconds, kept.needed
        state.cohorts[fold.cohort] = made

    def rewritten(self, change: Change | None, before: set[CohortId]) -> list[CohortRecord]:
        """Rows of cohorts that the step has made, ended or changed, each with a checkpoint of what is new."""
        federation, records = self.federation, []
        ended = {} if change is None else _ended(change, before - set(federation.state.cohorts))
        for cohort, how in ended.items():
            records.append(replace(self.records[cohort], state=how, opened_at_seconds=None))
        mixed = self._were_mixed()
        for leaf in federation.leaves:
            known = self.records.get(leaf)
            if mixed or known is None or known.state is not CohortState.TRAINING:
                records.append(self._new_record(leaf))
        return records

    def _were_mixed(self) -> bool:
        """Whether models have learned from each other, which they do when no round is open."""
        states = [self.federation.state.cohorts[leaf] for leaf in self.federation.leaves]
        return self.plan.strategy.mixing is not None and all(state.opened_at_seconds is None for state in states)

    def _new_record(self, leaf: CohortId) -> CohortRecord:
        state = self.federation.state.cohorts[leaf]
        name = self.checkpoints.write(of_cohort(leaf), state.version, pack_cohort(state))
        record = CohortRecord(leaf, state.version, state.round, name, facts=self.federation.facts(leaf))
        return standing(state, record)

    def written(self) -> str:
        """A checkpoint of the coordinator's own; its name."""
        state = self.federation.state
        return self.checkpoints.write(OF_FEDERATION, state.steps, pack_federation(state))

    def prune(self) -> None:
        """Keep the last few of the coordinator's own."""
        self.checkpoints.prune(OF_FEDERATION, {self.store.federation() or ""})

    def moved(self, change: Change | None) -> Mapping[str, CohortId]:
        """Tasks whose cohort no longer trains belong to an heir."""
        if change is None:
            return {}
        leaves = set(self.federation.leaves)
        return {
            task.task: self.federation.state.out.get(task.device) or _heir(change, task.device)
            for task in self.store.tasks()
            if task.cohort in self.records and task.cohort not in leaves
        }

    def changed_views(self) -> dict[DeviceId, dict[str, object]]:
        """What is known about devices, where it differs from what the store has."""
        views = self.federation.state.views
        return {device: dict(vars(view)) for device, view in views.items() if self._views.get(device) != view}


def _ended(change: Change, merged: set[CohortId]) -> dict[CohortId, CohortState]:
    if isinstance(change.decision, Split):
        return {change.decision.cohort: CohortState.SPLIT}
    return dict.fromkeys(sorted(merged), CohortState.MERGED)


def _heir(change: Change, device: DeviceId) -> CohortId:
    if isinstance(change.decision, Split):
        return change.children[change.decision.members.get(device, 0)]
    return change.decision.cohort
