"""A federation as two hundred rounds would leave it: splits, a merge, rounds in progress, refusals, ε spent."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from server_kit.daemon.federation_home import Home
from server_kit.metrics import Meter
from server_kit.store.protocol import Asking, CohortRecord, CohortState, Digest, Happening, Store, TaskRecord
from tests.server_kit.store.deliveries import enrolled, update

if TYPE_CHECKING:
    from server_kit.commands.opened import Revoking

DEVICES = [hashlib.sha256(f"device {number}".encode()).hexdigest()[:32] for number in range(64)]
SECONDS_PER_ROUND = 75.0
ROUNDS = 200
REASONS = {"late": 41, "replayed": 7, "bad signature": 3, "over budget": 12, "forged affinity": 1}


@dataclass(frozen=True)
class Life:
    """A cohort from one round to another; `end` is how it ended, "" while it trains."""

    cohort: str
    begin: int
    end_round: int
    devices: int
    best: float
    end: str = ""


LIVES = (
    Life("0", 1, 40, 64, 0.66, "split"),
    Life("0.0", 41, 150, 38, 0.87, "split"),
    Life("0.1", 41, 90, 26, 0.78, "split"),
    Life("0.1.0", 91, 130, 15, 0.80, "merged"),
    Life("0.1.1", 91, 130, 11, 0.77, "merged"),
    Life("0.1", 131, ROUNDS, 26, 0.86),
    Life("0.0.0", 151, ROUNDS, 21, 0.94),
    Life("0.0.1", 151, ROUNDS, 17, 0.91),
)
CHANGES = (
    (40, "split", "0", {"children": ["0.0", "0.1"], "sizes": [38, 26], "why": "two groups of updates point apart"}),
    (
        90,
        "split",
        "0.1",
        {"children": ["0.1.0", "0.1.1"], "sizes": [15, 11], "why": "label histograms differ"},
    ),
    (130, "merge", "0.1", {"children": [], "why": "no better apart than together"}),
    (150, "split", "0.0", {"children": ["0.0.0", "0.0.1"], "sizes": [21, 17], "why": "label histograms differ"}),
)


def believable(directory: Path, port: int, status_host: str = "127.0.0.1") -> Home:
    """The federation, with no server running in it."""
    doors = f"[listen]\nstatus = '{status_host}:{port}'\nhosts = ['localhost', '127.0.0.1']\n"
    home = Home.create(directory, f"[federation]\nname = 'ward monitors'\n[policy]\nepsilon = 8.0\n{doors}")
    store, now = home.open_store(), time.time()
    try:
        for device in DEVICES:
            store.register.add(enrolled(device))
        store.digest(Digest(None, "federation", cohorts=_cohorts(), happenings=_history(now)))
        _spend(store)
        _open_rounds(store, now)
        _refuse(store, now)
        for number, device in enumerate(DEVICES[:60]):
            store.seen([device], now - (20.0 if number < 44 else 700.0 * (number - 40) ** 2))
        for device in DEVICES[58:60]:
            cast("Revoking", store.register).revoke(device)
    finally:
        store.close()
    return home


@contextmanager
def running(home: Home) -> Iterator[None]:
    """Its processes, as far as anyone who looks can tell."""
    with ExitStack() as stack:
        stack.enter_context(home.running())
        store = home.open_store()
        stack.callback(store.close)
        assert store.acquire("coordinator", "somebody", 3600, time.time()) is not None
        for name in ("supervisor", "coordinator", "worker-0.0.0", "worker-0.0.1", "worker-0.1"):
            meter = Meter(name)
            if name == "coordinator":
                meter.gauge("covey_devices_connected", 44)
                meter.gauge("covey_devices_waiting", 9)
                meter.gauge("covey_certificate_expires_at_seconds", time.time() + 60 * 86400)
                meter.fact("deadline_seconds", 120.0)
            stack.enter_context(meter.publishing(home.run))
        yield


def finish_round(store: Store, cohort: str, number: int, accuracy: float) -> None:
    """What a coordinator would note."""
    facts = {"round": number, "selected": 10, "arrived": 9, "seconds": 30.0, "accuracy": accuracy, "devices": 26}
    store.note(Happening("round", time.time(), cohort, facts))


def _cohorts() -> list[CohortRecord]:
    records = {}
    for life in LIVES:
        state = CohortState(life.end) if life.end else CohortState.TRAINING
        records[life.cohort] = CohortRecord(life.cohort, life.end_round, life.end_round, f"{life.cohort}-1", state)
    return list(records.values())


def _history(now: float) -> list[Happening]:
    chance = np.random.default_rng(4)
    told = []
    for life in LIVES:
        told += [_round(life, number, now, chance) for number in range(life.begin, life.end_round + 1)]
    for number, kind, cohort, facts in CHANGES:
        told.append(Happening(kind, _at(number, now) + 1, cohort, facts))
    return sorted(told, key=lambda each: each.at_seconds)


def _round(life: Life, number: int, now: float, chance: np.random.Generator) -> Happening:
    inherited = 0.28 if life.begin == 1 else life.best - 0.12
    grown = 1 - math.exp(-(number - life.begin) / 14)
    accuracy = inherited + (life.best - inherited) * grown + chance.normal(0, 0.006)
    answer = 9 + 4 * chance.random()
    selected = max(4, life.devices // 3)
    new = max(0, selected - (number - life.begin)) if life.begin == 1 else 0
    again = min(selected - new, 2)
    facts = {
        "round": number,
        "selected": selected,
        "arrived": selected - int(chance.integers(0, 3)),
        "devices": life.devices,
        "seconds": round(answer * 3, 3),
        "answer_seconds": round(answer, 3),
        "slow_answer_seconds": round(answer * (1.8 + chance.random()), 3),
        "accuracy": round(float(accuracy), 4),
        "loss": round(float(2.4 * (1 - accuracy) + 0.05), 4),
        "mix": {"new": new, "again": again, "back": selected - new - again},
    }
    return Happening("round", _at(number, now), life.cohort, facts)


def _at(number: int, now: float) -> float:
    return now - 40 - (ROUNDS - number) * SECONDS_PER_ROUND


def _spend(store: Store) -> None:
    chance = np.random.default_rng(5)
    for place, device in enumerate(DEVICES[:58]):
        before = None
        for sequence in range(1, 2 + int(chance.binomial(14, 0.55 if place % 3 else 0.75))):
            arrival = update(device, f"old {device} {sequence}", sequence, before)
            cost = PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.ADD_REMOVE, pure_micro_epsilon=(500_000,))
            mechanism = "label_histogram" if sequence == 1 else "dp_sgd"
            before = replace(arrival.receipt, cost=cost, mechanism=mechanism)
            assert store.accept([replace(arrival, receipt=before)], time.time()) == [True]


def _open_rounds(store: Store, now: float) -> None:
    asked: list[TaskRecord] = []
    rounds: list[CohortRecord] = []
    for place, (cohort, out, needed) in enumerate((("0.0.0", 8, 7), ("0.0.1", 6, 5), ("0.1", 9, 8))):
        opened, checkpoint = now - 20 - 9 * place, f"{cohort}-1"
        rounds.append(CohortRecord(cohort, ROUNDS, ROUNDS, checkpoint, opened_at_seconds=opened, needed=needed))
        for number, device in enumerate(DEVICES[10 * place : 10 * place + out]):
            asked.append(TaskRecord(f"{cohort} {number}", device, cohort, ROUNDS, ROUNDS, opened, b"task"))
    store.ask(Asking(asked, rounds))
    for number, task in enumerate(asked):
        if number % 2:
            last = store.last_receipt(enrolled(task.device).ledger_key)
            sequence = 1 if last is None else last.sequence + 1
            store.accept([update(task.device, task.task, sequence, last)], now - number)


def _refuse(store: Store, now: float) -> None:
    for place, (reason, times) in enumerate(REASONS.items()):
        for number in range(times):
            store.count_refusal(reason, DEVICES[(place * 7 + number % 5) % len(DEVICES)], now)
