"""A device that takes part in three rounds, reduced to what it keeps: for `tests.device_sdk.mortal` to cut short.

The server is a file: what was sent, line by line and synced. `drive` is how a runtime uses the journal; the others
are broken twins.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from device_sdk.affinity import AffinityRecord
from device_sdk.affinity import Feedback as Said
from device_sdk.affinity_store import AffinityStore, tree_distance
from device_sdk.key_stores import FileKeyStore
from device_sdk.ledger_access import open_ledger
from device_sdk.round_record import Kind, Outcome, Phase, Round
from device_sdk.run_lock import running
from device_sdk.state import RoundJournal
from device_sdk.vault import Vault
from device_sdk.wire.messages import Feedback
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyCost, PrivacyUnit
from privacy.keys import SigningKey
from privacy.ledger import Ledger
from privacy.ledger.entries import Released, Reserved
from privacy.randomness import NoiseSource
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import issue_receipt
from privacy.release import Answer, Guarantee, Release, Request

SERVER = "fl.example.com:8443"
BUDGET = PrivacyBudget(epsilon=8, delta=1e-6)
TASKS = ["task-0", "task-1", "task-2"]
REWARD = 0.5
SERVER_KEY = SigningKey(bytes(range(32)))


class Coin:
    """A mechanism whose answers never repeat, so that noising twice would show."""

    name, guarantee = "coin", Guarantee("1", "fresh bytes", "none needed")
    cost = PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.REPLACE, pure_micro_epsilon=(1000,))
    terms: ClassVar[dict[str, int | str]] = {"version": 1}

    def check(self, data):
        pass

    def answer(self, data, noise):
        return Answer(os.urandom(32))


@dataclass(frozen=True)
class Device:
    """What one life of a device holds."""

    home: Path
    vault: Vault
    ledger: Ledger
    journal: RoundJournal
    affinity: AffinityStore

    @classmethod
    def open(cls, home: Path) -> Device:
        vault = Vault.open(home / "state", FileKeyStore(home / "device.key"))
        ledger = open_ledger(vault, BUDGET).shown_at(SERVER)
        return cls(home, vault, ledger, RoundJournal(vault, ledger, SERVER), AffinityStore(vault, SERVER))

    def close(self) -> None:
        self.ledger.close()
        self.vault.close()

    def go_on(self, entry: Round) -> None:
        """Take a round to its end, from wherever it is."""
        if entry.phase is not Phase.UPLOADED:
            self.send(entry.task, self.journal.resume(entry.task) or self.train(entry.task))
            self.journal.uploaded(entry.task)
        self.learn(entry.task)

    def accept(self, task: str, subject: str = "") -> Round:
        return self.journal.accept(task, Kind.TRAINING, b"order", Coin(), request_for(subject or task))

    def train(self, task: str, subject: str = "") -> Release:
        self.journal.attempt(task)
        return self.journal.release(task, Coin(), None, request=request_for(subject or task), noise=NoiseSource())

    def send(self, task: str, release: Release) -> None:
        line = f"{task} {hashlib.sha256(release.for_sending()).hexdigest()}\n"
        with (self.home / "sent").open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def hand_in(self, task: str) -> None:
        """As `go_on`, where the server says that nobody will judge the update."""
        release = self.journal.resume(task) or self.train(task)
        self.send(task, release)
        seen = ReceiptDesk("covey-abc", SERVER_KEY, MemoryShelf()).countersign(issue_receipt(self.ledger, release))
        self.journal.uploaded(task, seen, final=True)

    def learn(self, task: str) -> None:
        with self.vault.changing():
            self.affinity.learn(feedback_for(task), ("0",))
            self.journal.finish(task)


def request_for(subject: str) -> Request:
    return Request("covey-abc", "training", subject)


def feedback_for(task: str) -> Feedback:
    return Feedback("0", TASKS.index(task), b"mac", reward_change=REWARD)


def drive(home: Path) -> None:
    """One life: finish what was begun, then take the tasks that are left."""
    with running(home / "state"):
        device = Device.open(home)
        for entry in device.journal.rounds():
            device.go_on(entry)
        for task in TASKS:
            if not device.journal.knows(task):
                device.go_on(device.accept(task))
        device.close()


def drive_without_feedback(home: Path) -> None:
    """One life of a device whose updates nobody judges: what was acknowledged is written with the next release."""
    with running(home / "state"):
        device = Device.open(home)
        for entry in device.journal.rounds():
            if entry.phase is not Phase.UPLOADED:
                device.hand_in(entry.task)
        for task in TASKS:
            if not device.journal.knows(task):
                device.accept(task)
                device.hand_in(task)
        device.close()


def drive_closing_before_writing(home: Path) -> None:
    """A broken twin: a round ends before its acknowledgement is on disk, and nobody knows of its bytes any more."""

    def whatever_was_said(self: RoundJournal) -> list[Round]:
        return [entry for entry in self.awaiting_feedback() if entry.task in self._final]

    RoundJournal._not_to_be_judged = whatever_was_said  # type: ignore[method-assign]
    Ledger.write_acknowledged = lambda self: None  # type: ignore[method-assign]
    drive_without_feedback(home)


def drive_booking_each_attempt_anew(home: Path) -> None:
    """A broken twin: every attempt is another request, so an interrupted round is paid for twice."""
    device = Device.open(home)
    for task in TASKS:
        if device.journal.knows(task):
            continue
        subject = f"{task} {os.urandom(4).hex()}"
        device.accept(task, subject)
        device.send(task, device.train(task, subject))
        device.journal.uploaded(task)
        device.learn(task)
    for entry in device.journal.rounds():
        request = request_for(f"{entry.task} {os.urandom(4).hex()}")
        booking = device.ledger.reserve(Coin.name, Coin.terms, Coin.cost, request)
        device.send(entry.task, device.ledger.settle(booking, Coin().answer(None, None)))
        device.journal._close(entry, Outcome.FINISHED)
    device.close()


def drive_learning_before_noting(home: Path) -> None:
    """A broken twin: feedback is learned in one transaction and the round ended in another."""
    device = Device.open(home)
    begun = device.journal.rounds()
    for task in TASKS:
        if not device.journal.knows(task):
            begun.append(device.accept(task))
    for entry in begun:
        if entry.phase is not Phase.UPLOADED:
            device.send(entry.task, device.journal.resume(entry.task) or device.train(entry.task))
            device.journal.uploaded(entry.task)
        device.affinity.learn(feedback_for(entry.task), ("0",))
        device.journal.finish(entry.task)
    device.close()


def sent(home: Path) -> list[tuple[str, str]]:
    path = home / "sent"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []  # type: ignore[misc]


def acknowledged(home: Path) -> set[str]:
    """The tasks whose upload the device has noted: these are never to be sent again."""
    device = Device.open(home)
    waiting = {entry.task for entry in device.journal.rounds() if entry.phase is not Phase.UPLOADED}
    known = {task for task in TASKS if device.journal.knows(task)}
    device.close()
    return known - waiting


def violations_without_feedback(home: Path) -> list[str]:
    """What is wrong after a life that ended well, of a device whose updates nobody judges."""
    device = Device.open(home)
    uploaded = all(entry.phase is Phase.UPLOADED for entry in device.journal.rounds())
    device.close()
    of_feedback = {"a round that was not ended", "feedback learned twice or not at all"}
    found = [what for what in violations(home) if what not in of_feedback]
    return found if uploaded else [*found, "a round that was not sent"]


def violations(home: Path) -> list[str]:
    """What is wrong after a life that ended well."""
    device = Device.open(home)
    device.ledger.verify()
    entries = [entry.event for entry in device.ledger.entries()]
    released = {event.payload_hash for event in entries if isinstance(event, Released)}
    spends = [event for event in entries if isinstance(event, Reserved)]
    tasks = {task for task, _ in sent(home)}
    expected = AffinityRecord()
    for number in range(len(TASKS)):
        expected = expected.learned(Said("0", number, REWARD), ("0",), tree_distance)
    found = {
        "a spend without a release of its own": len(spends) != len(released) or len(spends) != len(tasks),
        "two different releases of one task": len(set(sent(home))) != len(tasks),
        "bytes that the ledger does not know": not {payload for _, payload in sent(home)} <= released,
        "a task that was not sent": tasks != set(TASKS),
        "a round that was not ended": device.journal.rounds() != [],
        "bytes that were kept for nothing": device.ledger._storage.answered() != [],
        "feedback learned twice or not at all": device.affinity.load() != expected,
    }
    device.close()
    return [what for what, is_so in found.items() if is_so]
