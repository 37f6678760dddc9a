"""A device that takes part in three rounds, a histogram and two questions, for `tests.device_sdk.mortal` to cut short.

Everything on the device is real. The server is a file, because a forked process cannot have gRPC: it holds what was
counted, line by line and synced, and hands out the next task until all are done. It says its feedback again on every
stream, as a server does that cannot know what was heard.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk import assignments, cohort_choice, questions
from device_sdk.affinity import AffinityRecord
from device_sdk.affinity import Feedback as Said
from device_sdk.affinity_store import tree_distance
from device_sdk.conditions import Conditions
from device_sdk.config import DeviceConfig
from device_sdk.kept import Kept
from device_sdk.key_stores import FileKeyStore
from device_sdk.ledger_access import open_ledger
from device_sdk.policy import Policy
from device_sdk.round_record import Round
from device_sdk.run_lock import running
from device_sdk.runtime import Runtime
from device_sdk.state import RoundJournal
from device_sdk.trainers import NumpyTrainer
from device_sdk.vault import Vault
from device_sdk.wire.cancelling import Stop
from device_sdk.wire.errors import Cancelled
from device_sdk.wire.messages import (
    Cohorts,
    DeviceLevelTerms,
    EnrolmentReply,
    Feedback,
    LocalObjective,
    ModelReference,
    Question,
    QuestionKind,
    Relation,
    Task,
    UpdateHeader,
    UploadAccepted,
    Welcome,
)
from device_sdk.wire.signing import check_release, device_id
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from privacy import LabelHistogram, PrivacyBudget
from privacy.keys import SigningKey
from privacy.ledger.entries import Released, Reserved
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import Receipt
from privacy.release import Request
from server_kit.daemon.authority import Authority

SERVER = "localhost:8443"
BUDGET = PrivacyBudget(epsilon=8, delta=1e-6)
ROUNDS = 3
REWARD = 0.5
SERVER_KEY = SigningKey(bytes(range(32)))
LABELS = np.arange(12) % 3
INPUTS = np.linspace(0, 1, 24, dtype=np.float32).reshape(12, 2)
MODEL = model_bytes({"dense1.weight": np.zeros((3, 2), np.float32), "dense1.bias": np.zeros(3, np.float32)})
SPECS = model_specs({"dense1.weight": np.zeros((3, 2), np.float32), "dense1.bias": np.zeros(3, np.float32)})
OTHER_MODEL = model_bytes({"dense1.weight": np.ones((3, 2), np.float32), "dense1.bias": np.zeros(3, np.float32)})
QUESTIONS = {
    "question-1": (QuestionKind.BEST_MODEL, (MODEL, OTHER_MODEL)),
    "question-2": (QuestionKind.ACCURACY, (OTHER_MODEL,)),
}
TERMS = DeviceLevelTerms(clip_norm="1", noise_multiplier="8", relation=Relation.REPLACE, grid_bits=17)


def task_number(number: int, device: str) -> Task:
    return Task(
        task=f"task-{number}",
        device=device,
        cohort="0",
        round=number,
        model=ModelReference(number, blob_of(MODEL), SPECS),
        objective=LocalObjective(0.1, 5, epochs=1),
        privacy=TERMS,
        deadline_seconds=3600.0,
    )


def question(name: str, device: str) -> Question:
    kind, models = QUESTIONS[name]
    references = tuple(ModelReference(1, blob_of(model), SPECS) for model in models)
    return Question(name, device, kind, references, epsilon="1/4", deadline_seconds=3600.0)


class ServerFile:
    """What the server has counted."""

    def __init__(self, home: Path, server: str) -> None:
        self._path = home / "server"
        self.arrivals = home / "arrivals"
        shelf = MemoryShelf()
        for line in self.lines():
            receipt = Receipt.from_json(line["receipt"].encode())
            shelf.add(receipt, shelf.last(receipt.device_key))
        self.receipts = ReceiptDesk(server, SERVER_KEY, shelf)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def updates(self) -> list[str]:
        return [line["task"] for line in self.lines() if line["task"]]

    def unanswered(self) -> list[str]:
        answered = {line["subject"] for line in self.lines()}
        return [name for name in QUESTIONS if name not in answered]

    def accept(self, header: Any, payload: bytes, device_key: bytes) -> UploadAccepted:
        _append(self.arrivals, {"sequence": header.sequence, "payload": hashlib.sha256(payload).hexdigest()})
        receipt = Receipt.from_json(header.receipt)
        acceptance = self.receipts.accept(receipt, hashlib.sha256(payload).hexdigest(), device_key)
        if not acceptance.repeated:
            is_update = isinstance(header, UpdateHeader)
            about = {"task": header.task if is_update else "", "subject": "" if is_update else header.subject}
            _append(self._path, {**about, "receipt": header.receipt.decode()})
        return UploadAccepted(acceptance.countersignature.to_json(), acceptance.repeated)


class FileChannel:
    """Speaks to the file as `device_sdk.wire.channel.Channel` speaks to a gateway."""

    def __init__(self, kept: Kept, server: ServerFile, stop: Stop) -> None:
        self._kept, self._server, self._stop = kept, server, stop
        self.said: deque[Any] = deque()

    def attend(self) -> FileSession:
        return FileSession(self, self._kept, self._server, self._stop)

    def download(self, blob: Any) -> memoryview:
        return memoryview(next(model for model in (MODEL, OTHER_MODEL) if blob == blob_of(model)))

    def upload(self, header: Any, payload: bytes, check_in: Any = None) -> UploadAccepted:
        enrolled = self._kept.identity.enrolled
        check_release(header, enrolled.device, self._kept.identity.signing_key.public_key)
        accepted = self._server.accept(header, payload, self._kept.ledger.device_key)
        if isinstance(header, UpdateHeader):
            self.said.append(feedback_to(header.task))
        if check_in is not None:
            self.hand_out()
        return replace(accepted, checked_in=check_in is not None)

    def hand_out(self) -> None:
        """What there is to do for a device that has checked in."""
        done, device = len(self._server.updates()), self._kept.identity.enrolled.device
        if done and self._server.unanswered():
            self.said.append(question(self._server.unanswered()[0], device))
        if done < ROUNDS:
            self.said.append(task_number(done + 1, device))


class FileSession:
    outdated = False

    def __init__(self, channel: FileChannel, kept: Kept, server: ServerFile, stop: Stop) -> None:
        self._channel, self._kept, self._server, self._stop = channel, kept, server, stop
        latest = server.receipts.latest(kept.ledger.device_key)
        self.welcome = Welcome(Cohorts(("0",)), b"" if latest is None else latest.to_json())
        channel.said = deque(feedback_to(task) for task in server.updates())

    def __enter__(self) -> FileSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check_in(self, _: Any) -> None:
        self._channel.hand_out()

    def decline(self, decline: Any) -> None:
        raise AssertionError(f"{decline.task} was declined")

    def receive(self, _: float) -> Any:
        if not self._channel.said:
            self._stop.set()
            raise Cancelled("all rounds are done")
        return self._channel.said.popleft()


def feedback_to(task: str) -> Feedback:
    return Feedback("0", int(task.removeprefix("task-")), mac=bytes(32), reward_change=REWARD)


def opened(home: Path) -> Kept:
    vault = Vault.open(home / "state", FileKeyStore(home / "device.key"))
    ledger = open_ledger(vault, BUDGET)
    kept = Kept.of(vault, ledger, SERVER)
    if kept.identity.enrolment is None:
        authority = Authority.create()
        device = device_id(kept.identity.signing_key.public_key)
        certificate = authority.issue_device(kept.identity.certificate_request, device)
        kept.identity.enrol(
            EnrolmentReply(device, authority.server, SERVER_KEY.public_key, SERVER, certificate, authority.certificate)
        )
    return kept


def closed(kept: Kept) -> None:
    kept.ledger.close()
    kept.vault.close()


def drive(home: Path) -> None:
    """One life: share a histogram, then take part until there is nothing to do."""
    config = DeviceConfig.of(
        server=SERVER,
        state=home / "state",
        budget=BUDGET,
        rounds={"most_attempts": 10},
        exploration={"first": 0.0},
        schedule={"first_seconds": 0},
    )
    with running(home / "state"):
        kept, stop = opened(home), Stop()
        channel: Any = FileChannel(kept, ServerFile(home, kept.identity.enrolled.server), stop)
        runtime = Runtime(kept, channel, config, policy=Policy(), conditions=Conditions(), stop=stop)
        runtime.share(LabelHistogram(3, "0.5"), LABELS, "1")
        runtime.run(NumpyTrainer(INPUTS, LABELS))
        closed(kept)


def take_whatever_is_asked(self: RoundJournal, entry: Round, digest: str) -> None:
    """In place of the refusal of a request that the round was not accepted for."""
    self._keep(replace(entry, request=digest))


def drive_paying_for_each_attempt(home: Path) -> None:
    """A broken twin: every attempt is another request."""

    def anew(server: str, purpose: str, subject: str) -> Request:
        return Request(server, purpose, f"{subject} {os.urandom(4).hex()}")

    vars(assignments)["Request"] = anew
    RoundJournal._check_request = take_whatever_is_asked  # type: ignore[method-assign]
    drive(home)


drive_paying_for_each_attempt.dies_in = "RoundJournal.release"  # type: ignore[attr-defined]


def drive_paying_for_each_answer(home: Path) -> None:
    """A broken twin: every attempt to answer is another request."""

    def anew(server: str, purpose: str, subject: str) -> Request:
        return Request(server, purpose, f"{subject} {os.urandom(4).hex()}")

    vars(questions)["Request"] = anew
    RoundJournal._check_request = take_whatever_is_asked  # type: ignore[method-assign]
    drive(home)


drive_paying_for_each_answer.dies_in = "RoundJournal.release"  # type: ignore[attr-defined]


def drive_learning_whatever_is_said(home: Path) -> None:
    """A broken twin: feedback is learned from although no update waits for it."""
    honest = cohort_choice.CohortChoice.learn

    def learn(self: Any, feedback: Feedback) -> None:
        if self._kept.journal.awaiting_feedback():
            honest(self, feedback)
        else:
            self._kept.affinities.learn(feedback, self._leaves)

    cohort_choice.CohortChoice.learn = learn  # type: ignore[method-assign]
    drive(home)


def violations(home: Path) -> list[str]:
    """What is wrong after a life that ended well."""
    kept = opened(home)
    kept.ledger.verify()
    events = [entry.event for entry in kept.ledger.entries()]
    # By their numbers, not by their bytes alone: two short answers may be noised to the same.
    released = {(event.reserve, event.payload_hash) for event in events if isinstance(event, Released)}
    spends = [event for event in events if isinstance(event, Reserved)]
    server = ServerFile(home, kept.identity.enrolled.server)
    counted = [Receipt.from_json(line["receipt"].encode()) for line in server.lines()]
    arrived = {
        (line["sequence"], line["payload"]) for line in map(json.loads, server.arrivals.read_text().splitlines())
    }
    expected = AffinityRecord()
    for number in range(1, ROUNDS + 1):
        expected = expected.learned(Said("0", number, REWARD), ("0",), tree_distance)
    found = {
        "a spend without a release of its own": not len(released) == len(spends) == 1 + ROUNDS + len(QUESTIONS),
        "a release that was counted twice": len(counted) != len({receipt.sequence for receipt in counted}),
        "a release that was not counted": sorted(receipt.payload_hash for receipt in counted)
        != sorted(payload_hash for _, payload_hash in released),
        "other bytes for the same release": len(arrived) != len({sequence for sequence, _ in arrived}),
        "a task that was not done": server.updates() != [f"task-{number}" for number in range(1, ROUNDS + 1)],
        "a question that was not answered": server.unanswered() != [],
        "a round that was not ended": kept.journal.rounds() != [],
        "bytes that were kept for nothing": kept.ledger._storage.answered() != [],
        "feedback learned twice or not at all": kept.affinities.load() != expected,
    }
    closed(kept)
    return [what for what, is_so in found.items() if is_so]


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
