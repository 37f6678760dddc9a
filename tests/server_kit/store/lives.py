"""A server's whole life on one store, which may end at any line; and what must be true of the store ever after."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from server_kit.store.protocol import (
    Asking,
    CohortRecord,
    Digest,
    FeedbackRecord,
    FoldRecord,
    FoldState,
    Happening,
    TaskState,
)
from server_kit.store.sql_store import SqlStore
from tests.server_kit.store.deliveries import key_of, task, update

ROOT = Path(__file__).parents[3]
OURS = (f"{ROOT}/server_kit/store/", f"{ROOT}/privacy/sealing.py", f"{ROOT}/privacy/durable.py")
KEYS = StoreKeys(bytes(32))
ROUNDS, DEVICES = 3, ("a", "b", "c")
EXPECTED = 2 ** (ROUNDS * len(DEVICES)) - 1
"""The sum of all updates: each is another power of two, so that a lost or doubled one shows."""


def open_at(home: Path, kind: type[SqlStore] = SqlStore) -> SqlStore:
    store = open_store(f"sqlite:///{home}/server.db", KEYS, home / "blobs")
    store.__class__ = kind
    return store


def live(home: Path, kind: type[SqlStore] = SqlStore) -> None:
    """Be gateway, worker and coordinator in turn, from wherever the store stands, until all rounds are digested."""
    store = open_at(home, kind)
    lease = store.acquire("0", "worker", 1e9, time.time())
    assert lease is not None
    if store.federation() is None:
        store.digest(Digest(None, "federation 0", [CohortRecord("0", 0, 0, "0")]))
    while (cohort := store.cohorts()[0]).version < ROUNDS or store.folds(FoldState.DONE):
        if done := store.folds(FoldState.DONE):
            _digest(store, done[0])
        elif begun := store.folds(FoldState.BEGUN):
            total = int(cohort.checkpoint) + sum(_number(store, name) for name in begun[0].tasks)
            after = CohortRecord("0", cohort.version + 1, 0, str(total))
            store.finish_fold(FoldRecord("0", begun[0].version, (), 0.0, checkpoint=str(total)), lease, after)
        else:
            _collect(store, cohort, lease)
    store.close()


def _collect(store, cohort, lease):
    names = [f"{cohort.version}-{device}" for device in DEVICES]
    tasks = store.tasks("0")
    if not tasks:
        store.ask(Asking([task(name, name[-1]) for name in names], []))
    elif out := [found for found in tasks if found.state is TaskState.OUT]:
        store.accept([_arrival(store, found, cohort.version) for found in out], time.time())
    else:
        store.begin_fold(FoldRecord("0", cohort.version, tuple(names), 0.0), [], lease)


def _arrival(store, found, version):
    place = DEVICES.index(found.device)
    number = 2 ** (version * len(DEVICES) + place)
    # One of them is large enough for a blob.
    content = number.to_bytes(8) + bytes(300_000 if place == 1 else 0)
    return update(found.device, found.task, version + 1, store.last_receipt(key_of(found.device)), content)


def _digest(store, fold):
    store.digest(
        Digest(
            (fold.cohort, fold.version),
            f"federation {fold.version + 1}",
            views={"a": {"version": fold.version}},
            feedback=[FeedbackRecord("a", b"feedback")],
            happenings=[Happening("round", 0.0)],
        )
    )


def _number(store, name):
    return int.from_bytes(b"".join(store.payload(name).pieces())[:8])


def violations(store: SqlStore) -> list[str]:
    """What is half done; nothing may be, whenever its server died."""
    tasks = {found.task: found for found in store.tasks(None, *TaskState)}
    states = Counter(found.state for found in tasks.values())
    folds = [fold for state in FoldState for fold in store.folds(state)]
    finished = [fold for fold in folds if fold.state is not FoldState.BEGUN]
    digested = [fold for fold in folds if fold.state is FoldState.DIGESTED]
    cohorts = store.cohorts()
    laws = {
        "a receipt for each update": len(list(store.receipts()))
        == states[TaskState.ARRIVED] + states[TaskState.FOLDED],
        "tasks are asked all or none": len(tasks) % len(DEVICES) == 0,
        "updates are accepted all or none": states[TaskState.ARRIVED] % len(DEVICES) == 0,
        "a finished step folds its updates": states[TaskState.FOLDED] == len(finished) * len(DEVICES),
        "a finished step is a version": not cohorts or cohorts[0].version == len(finished),
        "a version adds its updates": not cohorts
        or int(cohorts[0].checkpoint) == 2 ** (len(finished) * len(DEVICES)) - 1,
        "a digested step is in the federation": store.federation() in (None, f"federation {len(digested)}"),
        "a digested step is told once": len(store.happenings()) == len(digested),
    }
    return [law for law, holds in laws.items() if not holds] + unreadable(store, tasks)


def unreadable(store, tasks):
    waiting = [found for found in tasks.values() if found.state is TaskState.ARRIVED]
    problems = []
    for found in waiting:
        version, device = found.task.split("-")
        expected = 2 ** (int(version) * len(DEVICES) + DEVICES.index(device))
        try:
            if _number(store, found.task) != expected:
                problems.append(f"{found.task} has other bytes")
        except Exception as error:
            problems.append(f"{found.task} cannot be read: {error}")
    return problems


# Broken twins


class MovesTheCohortFirst(SqlStore):
    def finish_fold(self, fold, lease, cohort):
        self.ask(Asking([], [cohort]))
        super().finish_fold(fold, lease, cohort)


class DeletesBlobsFirst(SqlStore):
    def finish_fold(self, fold, lease, cohort):
        for name in self._blobs.list("updates/"):
            self._blobs.delete(name)
        super().finish_fold(fold, lease, cohort)


class AcceptsOneByOne(SqlStore):
    def accept(self, arrivals, now_seconds):
        return [super(AcceptsOneByOne, self).accept([arrival], now_seconds)[0] for arrival in arrivals]


# Lives, one for each kind of store (`tests.mortal`)


def as_it_is(home: Path) -> None:
    live(home)


def moving_the_cohort_first(home: Path) -> None:
    live(home, MovesTheCohortFirst)


def deleting_blobs_first(home: Path) -> None:
    live(home, DeletesBlobsFirst)


def accepting_one_by_one(home: Path) -> None:
    live(home, AcceptsOneByOne)
