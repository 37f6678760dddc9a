"""A federation to which everything happens that can: seeded, under a fake clock, checked after each deed.

Every update adds one to a coordinate of its own, and the aggregator adds up, so the models show what was folded and how
often. A deed may be cut short between any two calls of the store (`mortal_store`), or someone else may be faster there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import UpdateHeader
from privacy.keys import SigningKey
from server_kit.checkpoints import unpack_cohort
from server_kit.cohort_tree import lineage
from server_kit.daemon.gathering import Patience
from server_kit.daemon.pretraining import FOUNDING
from server_kit.daemon.register import EnrolledDevice
from server_kit.federation_state import Plan
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.presets import strategy
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import FoldState, TaskState
from server_kit.store.sql_store import SqlStore
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.mortal_store import Aim, KilledHere, MortalStore
from tests.server_kit.daemon.paper_server import SERVER, Clock, PaperDevice, PaperServer

PARTS = "tests.server_kit.daemon.fault_parts"
LAYOUT = Layout((("w", (40, 25)),))
STEP = 1 / 256
_DEVICES = 7
_CALLS = 14
"""So many calls of the store from the beginning of a deed, or fewer, someone dies or intrudes."""
_WRITES = ("ask", "digest", "begin_fold", "finish_fold", "end_late")
"""Or at one of these, after which nothing is as it was."""

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "rounds": ("fedavg", {"over_commit": 1.5}),
    "late updates are wanted": ("fedavg", {"over_commit": 1.5, "fold_late": True}),
    "splits and merges": ("fedavg", {"formation": {"kind": f"{PARTS}:SplitsAndMerges"}}),
    "buffers": ("fedbuff", {"buffer": 2}),
    "buffers that split and merge": ("fedbuff", {"buffer": 1, "formation": {"kind": f"{PARTS}:SplitsAndMerges"}}),
    "newcomers train first": ("fedavg", {"formation": {"kind": f"{PARTS}:AsksNewcomers"}}),
    "shared places": ("fedavg", {"formation": {"kind": f"{PARTS}:SplitsAndMerges"}, "budget": "shared"}),
}


@dataclass
class Actor:
    """A device that keeps what it has not been thanked for, as the SDK's outbox does."""

    world: World
    device: PaperDevice
    unsent: tuple[UpdateHeader, bytes] | None = None
    is_there: bool = True
    revoked: bool = False

    def connect(self) -> None:
        if not self.revoked:
            self.device.connect()
            self.is_there = True

    def disconnect(self, *, leaving: bool = False) -> None:
        self.is_there = False
        self.device.disconnect(leaving=leaving)

    def check_in(self) -> None:
        if self.is_there and self.unsent is None:
            self.device.messages.clear()
            self.device.check_in()

    def answer(self) -> None:
        """Send what lies here, or else what the task asks for."""
        task = self.device.task
        if self.unsent is None and task is not None and not self.revoked:
            self.device.messages.clear()
            self.unsent = self.device.upload_of(task, self.world.next_values())
            self.world.coordinates[task.task] = self.world.made - 1
        if self.unsent is not None:
            header, payload = self.unsent
            try:
                self.device.send(header, payload)
            except Refused:
                self.world.refused.append(header.task)
            else:
                self.world.thanked.append(header)
            self.unsent = None

    def answer_again(self) -> None:
        if self.unsent is None and self.device.last_upload is not None:
            header = self.device.last_upload[0]
            if header in self.world.thanked:
                assert self.device.send_again().repeated

    def decline(self) -> None:
        if self.device.task is not None and self.unsent is None:
            self.device.decline()

    def revoke(self) -> None:
        self.revoked = self.world.inner.register.revoke(self.device.id)
        self.disconnect()


@dataclass
class World:
    """The server, its devices, and what must never be seen."""

    directory: Path
    name: str
    seed: int
    inner: SqlStore | MemoryStore
    made: int = 0
    coordinates: dict[str, int] = field(default_factory=dict)
    """Of each task's update."""
    thanked: list[UpdateHeader] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    _rounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    _ends: dict[str, TaskState] = field(default_factory=dict)
    _models: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = Random(f"{self.name} {self.seed}")
        preset, overrides = WORLDS[self.name]
        settings = {"deadline_seconds": 100.0, "aggregator": {"kind": f"{PARTS}:Sum"}, **overrides}
        start = torch.zeros(LAYOUT.size)
        plan = Plan(strategy(preset, settings), LocalTask(0.1, steps=2), LAYOUT, 4, lambda _: start.clone())
        self.store = MortalStore(self.inner)
        patience = Patience(waiting_needed=3, gather_seconds=5.0, absence_seconds=30.0)
        self.server = PaperServer(
            self.directory, store=self.store, given=plan, layout=LAYOUT, patience=patience, clock=Clock()
        )
        self.actors = [Actor(self, self._device()) for _ in range(_DEVICES)]

    def _device(self) -> PaperDevice:
        """Who it is follows from the seed, since names decide about order."""
        signing, ledger = (SigningKey(self.chance.randbytes(32)) for _ in range(2))
        made = PaperDevice(self.server, TestDevice(signing=signing, ledger=ledger, server=SERVER))
        self.inner.register.add(EnrolledDevice(made.id, signing.public_key, ledger.public_key))
        return made.connect()

    def next_values(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        values = np.zeros(LAYOUT.size, dtype=np.int64)
        values[self.made] = 1
        self.made += 1
        return values

    # What happens

    def run(self, deeds: int) -> None:
        for _ in range(deeds):
            self.do_something()
            self.check()
        self.recover()

    def do_something(self) -> None:
        self.server.clock.now += 0.01
        actor = self.chance.choice(self.actors)
        deeds: list[tuple[int, Callable[[], None]]] = [
            (8, self.coordinate),
            (8, self.work),
            (6, lambda: self.at_the_desk(actor.connect)),
            (8, lambda: self.at_the_desk(actor.check_in)),
            (12, lambda: self.at_the_desk(actor.answer)),
            (3, lambda: self.at_the_desk(actor.answer_again)),
            (1, lambda: self.at_the_desk(actor.decline)),
            (1, lambda: self.at_the_desk(actor.disconnect)),
            (1, lambda: self.at_the_desk(lambda: actor.disconnect(leaving=True))),
            (5, self.bustle),
            (1, self.pass_time),
            (1, lambda: self.die("coordinator")),
            (1, self.server.workers.clear),
        ]
        if self.chance.random() < 0.004 and sum(not each.revoked for each in self.actors) > 4:
            self.at_the_desk(actor.revoke)
        else:
            self.chance.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]()

    def coordinate(self) -> None:
        self._lay_a_trap(self._all_work)
        self._risk("coordinator", self.server.coordinator.step)

    def work(self) -> None:
        worker = self.server.worker(self.chance.choice(self.inner.cohorts()).cohort)
        self._lay_a_trap(lambda: self._others_go_on(worker.cohort))
        self._risk(worker.cohort, worker.step)

    def at_the_desk(self, deed: Callable[[], None]) -> None:
        if self.chance.random() < 0.05:
            self.store.kill(self.chance.randint(1, 4), after_effect=self.chance.random() < 0.5)
        self._risk("coordinator", deed)

    def bustle(self) -> None:
        """Everyone does what comes next."""
        for actor in self.actors:
            next_one = actor.answer if actor.device.task or actor.unsent else actor.check_in
            self.at_the_desk(next_one if actor.is_there else actor.connect)

    def pass_time(self) -> None:
        self.server.clock.now += self.chance.choice([1.0, 6.0, 31.0, 61.0, 101.0])

    def die(self, who: str) -> None:
        """The process begins anew; it may die again while it does."""
        self.deaths["coordinator" if who == "coordinator" else "worker"] += 1
        if who != "coordinator":
            self.server.workers.pop(who, None)
            return
        for actor in self.actors:
            actor.is_there = False
        if self.chance.random() < 0.3:
            self.store.kill(self.chance.randint(1, 5), after_effect=False)
        try:
            self.server.restart_coordinator()
        except KilledHere:
            self.server.restart_coordinator()
        self.store.disarm()

    def _all_work(self, but: str = "") -> None:
        for record in self.inner.cohorts():
            if record.cohort != but:
                self.server.worker(record.cohort).step()

    def _others_go_on(self, cohort: str) -> None:
        self._all_work(but=cohort)
        self.server.coordinator.step()

    def _lay_a_trap(self, intrusion: Callable[[], object]) -> None:
        kind = self.chance.random()
        aims: list[Aim] = [self.chance.randint(1, _CALLS), *_WRITES]
        aim = self.chance.choice(aims)
        if kind < 0.2:
            self.store.kill(aim, after_effect=kind < 0.1)
        elif kind < 0.6:
            self.store.intrude(aim, lambda: self._intrude(intrusion))

    def _intrude(self, intrusion: Callable[[], object]) -> None:
        for actor in self.actors:
            if self.chance.random() < 0.5:
                actor.answer()
        intrusion()

    def _risk(self, who: str, deed: Callable[[], object]) -> None:
        try:
            deed()
        except KilledHere:
            self.die(who)
        self.store.disarm()

    # What must be true

    def check(self) -> None:
        self._every_thanked_update_is_kept()
        self._cohorts_only_grow()
        self._nobody_is_asked_twice_or_for_the_dead()
        self._models_hold_what_was_folded()

    def _every_thanked_update_is_kept(self) -> None:
        kept = {TaskState.ARRIVED, TaskState.FOLDED, TaskState.LATE}
        receipts = {receipt.to_json() for receipt in self.inner.receipts()}
        for header in self.thanked:
            assert header.receipt in receipts, "a receipt is gone that a device was thanked for"
            task = self.inner.task(header.task)
            assert task is not None, "a task is gone"
            assert task.state in kept, f"an accepted update is {task.state}"
            before = self._ends.get(task.task, TaskState.ARRIVED)
            assert before in (TaskState.ARRIVED, task.state), f"an update was {before} and is {task.state}"
            self._ends[task.task] = task.state

    def _cohorts_only_grow(self) -> None:
        for record in self.inner.all_cohorts():
            before = self._rounds.get(record.cohort, (0, 0))
            assert record.version >= before[0], "a cohort has gone back"
            assert record.round >= before[1], "a round was undone"
            self._rounds[record.cohort] = (record.version, record.round)
        leaves = {record.cohort for record in self.inner.cohorts()}
        for leaf in leaves:
            assert not leaves & set(list(lineage(leaf))[1:]), "a cohort trains beside its child"

    def _nobody_is_asked_twice_or_for_the_dead(self) -> None:
        leaves = {record.cohort for record in self.inner.cohorts()}
        waiting = self.inner.tasks()
        assert {task.cohort for task in waiting} <= leaves | {FOUNDING}, "work waits for a cohort that is gone"
        out = Counter(task.device for task in waiting if task.state is TaskState.OUT)
        assert not out or max(out.values()) == 1, "a device has two tasks"

    def _models_hold_what_was_folded(self) -> None:
        folds = [fold for state in (FoldState.DONE, FoldState.DIGESTED) for fold in self.inner.folds(state)]
        times = Counter(task for fold in folds for task in fold.tasks)
        assert not times or max(times.values()) == 1, "an update is in two steps"
        folded = {task.task for task in self.inner.tasks(None, TaskState.FOLDED) if task.cohort != FOUNDING}
        assert folded == set(times), "what is folded and what steps name differ"
        expected = np.zeros(LAYOUT.size)
        expected[[self.coordinates[task] for task in folded]] = STEP
        # What any living cohort has folded, itself or before a split.
        union = np.max([self._model(record.checkpoint) for record in self.inner.cohorts()], axis=0)
        assert np.array_equal(union, expected), "the models show other updates than were folded"

    def _model(self, checkpoint: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        if checkpoint not in self._models:
            self._models[checkpoint] = unpack_cohort(self.server.checkpoints.read(checkpoint)).model.numpy()
        return self._models[checkpoint]

    # Afterwards

    def recover(self) -> None:
        """Nothing goes wrong any more: every cohort makes new models, and what has arrived comes to an end."""
        self.store.disarm()
        living = [actor for actor in self.actors if not actor.revoked]
        before = sum(record.version for record in self.inner.cohorts())
        for _ in range(20):
            for actor in living:
                if not actor.is_there:
                    actor.connect()
                actor.answer()
                if actor.device.task is None:
                    actor.check_in()
            self.server.turn(7.0)
            self.check()
        assert sum(record.version for record in self.inner.cohorts()) >= before + 3, "the federation stands still"
        self._leave(living)
        self._nothing_waits_for_nobody()

    def _leave(self, living: list[Actor]) -> None:
        """All answer once more, the last of them after its round, and go."""
        last, *others = living
        for actor in others:
            actor.answer()
        self.server.turn(101.0)
        last.answer()
        for actor in living:
            actor.disconnect(leaving=True)
        for _ in range(2):
            self.server.turn(101.0)
            self.check()

    def _nothing_waits_for_nobody(self) -> None:
        """Nothing will come any more that could end what has arrived."""
        waiting = [task for task in self.inner.tasks(None, TaskState.ARRIVED) if task.cohort != FOUNDING]
        strategy = self.server.plan.strategy
        allowed = 0 if strategy.buffer is None else (strategy.buffer - 1) * len(self.inner.cohorts())
        assert len(waiting) <= allowed, "an update waits for ever"

    def close(self) -> None:
        self.server.close()
