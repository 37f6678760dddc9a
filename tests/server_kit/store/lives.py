"""A server's whole life on one store, which may end at any line; and what must be true of the store ever after.

Run as a script it forks for each line `STORY HOME KILL_AT AFTER` on its input, lets that story live until the
KILL_AT-th line of the store's code or AFTER seconds (0: to its end), and prints how it ended and how many lines it ran.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

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
KILLED = -signal.SIGKILL
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


KINDS = {kind.__name__: kind for kind in (SqlStore, MovesTheCohortFirst, DeletesBlobsFirst, AcceptsOneByOne)}


# Lives and deaths


class End(NamedTuple):
    code: int
    lines: int


class Nursery:
    """Begins lives, one at a time."""

    def __enter__(self) -> Nursery:
        command = [sys.executable, "-m", "tests.server_kit.store.lives"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def live(self, kind: str, home: Path, kill_at: int = 0, kill_after_seconds: float = 0.0) -> End:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind}\t{home}\t{kill_at}\t{kill_after_seconds}\n")
        self._process.stdin.flush()
        return End(*map(int, self._process.stdout.readline().split()))


class _Clock:
    """Counts the lines of the store, and ends the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at, self.lines = kill_at, 0

    def __call__(self, frame, event, argument):
        return self.line if frame.f_code.co_filename.startswith(OURS) else None

    def line(self, frame, event, argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def _one_life(kind: str, home: Path, kill_at: int, report: int) -> None:
    clock = _Clock(kill_at)
    sys.settrace(clock)
    live(home, KINDS[kind])
    sys.settrace(None)
    os.write(report, str(clock.lines).encode())
    os._exit(0)


def main() -> None:
    for request in sys.stdin:
        kind, home, kill_at, after = request.rstrip("\n").split("\t")
        reading, report = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _one_life(kind, Path(home), int(kill_at), report)
            finally:
                os._exit(1)
        os.close(report)
        if float(after):
            time.sleep(float(after))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lines = os.read(reading, 20).decode() or "0"
        os.close(reading)
        os.write(1, f"{code} {lines}\n".encode())


if __name__ == "__main__":
    main()
