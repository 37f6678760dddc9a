"""Whatever is done in whatever order, a store in a database shows what the store in memory shows."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from privacy.receipts import Receipt
from server_kit.errors import StoreError
from server_kit.store.keys import StoreKeys
from server_kit.store.memory import MemoryStore
from server_kit.store.opening import open_store
from server_kit.store.protocol import (
    Arrival,
    Asking,
    CohortRecord,
    CohortState,
    Digest,
    FeedbackRecord,
    FoldRecord,
    FoldState,
    Happening,
    TaskState,
)
from server_kit.store.sql_store import SqlStore
from tests.server_kit.store.deliveries import enrolled, key_of, summary, task, update

DEVICES = st.sampled_from(["a", "b", "c"])
COHORTS = st.sampled_from(["0", "0.0", "0.1"])
FACTS = st.dictionaries(st.sampled_from("xyz"), st.none() | st.integers(-9, 9) | st.floats(0, 1), max_size=2)
TIMES = st.floats(0, 1000)
CONTENTS = st.sampled_from([b"", b"small", b"large" * 60_000])


class Stores(RuleBasedStateMachine):
    """The same deeds to both; the same answers, and afterwards the same sight."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = MemoryStore(clock=lambda: 1000.0)
        self.stored = self.make_stored()
        self.num_tasks = 0
        self.leases: list = []

    def make_stored(self) -> SqlStore:
        raise NotImplementedError

    def teardown(self) -> None:
        self.stored.close()

    def both(self, deed):
        answers = []
        for store in (self.plain, self.stored):
            try:
                answers.append(deed(store))
            except StoreError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    def version(self, data, cohort):
        """Most often one that this cohort could have; now and then one that it is past."""
        now = max([found.version for found in self.plain.all_cohorts() if found.cohort == cohort], default=1)
        return now + data.draw(st.sampled_from([0, 0, 0, 1, -1]))

    def some_tasks(self, data, most=3):
        return data.draw(st.lists(st.integers(0, self.num_tasks).map("task {}".format), max_size=most))

    @initialize()
    def begin(self):
        for device in ("a", "b"):
            self.both(lambda store, device=device: store.register.add(enrolled(device)))

    @rule(devices=st.lists(DEVICES, max_size=3), cohort=COHORTS, facts=FACTS, data=st.data())
    def ask(self, devices, cohort, facts, data):
        records = []
        for device in devices:
            self.num_tasks += 1
            records.append(task(f"task {self.num_tasks}", device, cohort))
        lost = self.some_tasks(data)
        cohorts = [CohortRecord(cohort, self.version(data, cohort), 1, "checkpoint", facts=facts)]
        self.both(lambda store: store.ask(Asking(records, cohorts, lost)))

    @rule(data=st.data(), now=TIMES)
    def accept(self, data, now):
        arrivals: list[Arrival] = []
        newest: dict[str, Receipt] = {}
        for _ in range(data.draw(st.integers(1, 3))):
            device = data.draw(DEVICES)
            after = newest.get(device) or self.plain.last_receipt(key_of(device))
            number = (0 if after is None else after.sequence) + data.draw(st.integers(0, 2))
            told = after if data.draw(st.integers(0, 5)) else None
            content = data.draw(CONTENTS)
            if data.draw(st.booleans()):
                name = f"task {data.draw(st.integers(0, self.num_tasks))}"
                arrival = update(device, name, number, told, content)
            else:
                subject, kind = data.draw(st.sampled_from(["1", "2"])), data.draw(st.sampled_from(["x", "y"]))
                arrival = summary(device, subject, number, told, content=content, mechanism=kind)
            arrivals.append(arrival)
            newest[device] = arrival.receipt
        self.both(lambda store: store.accept(arrivals, now))

    @rule(data=st.data(), state=st.sampled_from(TaskState))
    def end_task(self, data, state):
        name = f"task {data.draw(st.integers(0, self.num_tasks))}"
        self.both(lambda store: store.end_task(name, state))

    @rule(name=COHORTS, holder=st.sampled_from(["w1", "w2"]), now=TIMES)
    def acquire(self, name, holder, now):
        lease = self.both(lambda store: store.acquire(name, holder, 100.0, now))
        if lease is not None:
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), now=TIMES, release=st.booleans())
    def renew_or_release(self, data, now, release):
        lease = data.draw(st.sampled_from(self.leases))
        self.both(lambda store: store.release(lease) if release else store.renew(lease, 100.0, now))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), cohort=COHORTS, version=st.integers(0, 3), right=st.integers(0, 3))
    def begin_fold(self, data, cohort, version, right):
        waiting = [found.task for found in self.plain.tasks(cohort, TaskState.ARRIVED)]
        tasks = tuple(waiting[:2]) if right else tuple(self.some_tasks(data))
        lease = data.draw(st.sampled_from(self.leases[-2:]))
        late = self.some_tasks(data)
        self.both(lambda store: store.begin_fold(FoldRecord(cohort, version, tasks, 1.0), late, lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), cohort=COHORTS)
    def end_late(self, data, cohort):
        late, lease = self.some_tasks(data), data.draw(st.sampled_from(self.leases[-2:]))
        self.both(lambda store: store.end_late(cohort, late, lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), cohort=COHORTS, version=st.integers(0, 3), right=st.integers(0, 3))
    def finish_fold(self, data, cohort, version, right):
        fold = FoldRecord(cohort, version, (), 1.0, checkpoint="next", report="report")
        begun = self.plain.folds(FoldState.BEGUN)
        if begun and right:
            fold = replace(data.draw(st.sampled_from(begun)), checkpoint="next", report="report")
        lease = data.draw(st.sampled_from(self.leases[-2:]))
        record = CohortRecord(fold.cohort, self.version(data, fold.cohort), 2, "next")
        self.both(lambda store: store.finish_fold(fold, lease, record))

    @rule(data=st.data(), facts=FACTS, cohort=COHORTS, state=st.sampled_from(CohortState))
    def digest(self, data, facts, cohort, state):
        done = [(fold.cohort, fold.version) for fold in self.plain.folds(FoldState.DONE)]
        step = data.draw(st.sampled_from([None, ("0", 0), *done]))
        device = data.draw(DEVICES)
        digest = Digest(
            step,
            f"federation {self.num_tasks}",
            [CohortRecord(cohort, self.version(data, cohort), 5, "digested", state, 7.0, 3, facts)],
            dict.fromkeys(self.some_tasks(data), cohort),
            {device: facts},
            [FeedbackRecord(device, b"feedback"), FeedbackRecord("a", b"more")],
            [Happening("digested", 5.0, cohort, facts)],
            dict.fromkeys(self.some_tasks(data), data.draw(st.sampled_from([TaskState.FOLDED, TaskState.LATE]))),
        )
        self.both(lambda store: store.digest(digest))

    @rule(devices=st.lists(DEVICES, max_size=3))
    def feedback(self, devices):
        self.both(lambda store: store.feedback(devices))

    @rule(device=DEVICES, reason=st.sampled_from(["replayed", "large"]), now=TIMES, add=st.booleans())
    def people(self, device, reason, now, add):
        if add:
            self.both(lambda store: store.register.add(enrolled(device)))
        else:
            self.both(lambda store: store.register.revoke(device))
        self.both(lambda store: store.count_refusal(reason, device, now))
        self.both(lambda store: store.seen([device], now))

    @rule()
    def rotate_or_sweep(self):
        self.stored.rotate()
        self.stored.sweep()

    @invariant()
    def both_show_the_same(self):
        self.both(sight)

    @invariant()
    def bytes_are_kept_while_they_are_needed(self):
        for found in self.plain.tasks(None, *TaskState):
            self.both(lambda store, name=found.task: b"".join(store.payload(name).pieces()))


def sight(store):
    """Everything that can be seen without changing it."""
    return (
        store.tasks(None, *TaskState),
        store.tasks(),
        store.tasks("0", TaskState.OUT, TaskState.LATE),
        store.cohorts(),
        store.all_cohorts(),
        [store.folds(state) for state in FoldState],
        store.federation(),
        dict(store.views()),
        list(store.receipts()),
        [store.last_receipt(key_of(device)) for device in "abc"],
        [store.summaries(kind, subject) for kind in "xy" for subject in (None, "1", "2")],
        store.held(),
        store.happenings(),
        store.happenings(2, 3, "digested"),
        store.devices(),
        dict(store.refusals()),
        [store.register.find(device) for device in "abc"],
    )


def run(machine, examples, steps, *phases):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            phases=phases or tuple(Phase),
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def on_sqlite(blank_database, kind=SqlStore):
    class OnSqlite(Stores):
        def make_stored(self):
            self.home = tempfile.TemporaryDirectory()
            place = Path(self.home.name)
            shutil.copy(blank_database, place / "server.db")
            store = open_store(f"sqlite:///{place}/server.db", StoreKeys.generate(), place / "blobs", lambda: 1000.0)
            store.__class__ = kind
            return store

        def teardown(self):
            super().teardown()
            self.home.cleanup()

    return OnSqlite


def test_sqlite_shows_what_memory_shows(blank_database):
    run(on_sqlite(blank_database), examples=15, steps=20)


@pytest.mark.integration
def test_postgres_shows_what_memory_shows(postgres, tmp_path):
    class OnPostgres(Stores):
        def make_stored(self):
            return open_store(postgres.emptied(), StoreKeys.generate(), tmp_path / "blobs", lambda: 1000.0)

    run(OnPostgres, examples=5, steps=20)


@pytest.mark.stress
def test_sqlite_shows_what_memory_shows_at_length(blank_database):
    run(on_sqlite(blank_database), examples=1_000, steps=50)


class ForgetsToCheckTheLease(SqlStore):
    def finish_fold(self, fold, lease, cohort):
        super().finish_fold(fold, self.acquire(lease.name, lease.holder, 100.0, 1e9) or lease, cohort)


class GivesFeedbackTwice(SqlStore):
    def feedback(self, devices):
        given = super().feedback(devices)
        self.digest(Digest(None, self.federation() or "", feedback=given))
        return given


class KeepsOldSummaries(SqlStore):
    def summaries(self, mechanism, subject=None, on_unreadable=None):
        return super().summaries(mechanism, subject, on_unreadable)[:1]


@pytest.mark.parametrize("twin", [ForgetsToCheckTheLease, GivesFeedbackTwice, KeepsOldSummaries])
def test_a_broken_store_is_caught(blank_database, twin):
    with pytest.raises(AssertionError):
        run(on_sqlite(blank_database, twin), 200, 30, Phase.generate)
