"""A server that trains: `MemoryServer` with one model, a task for whoever checks in, and feedback for every update."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.config import DeviceConfig, KeySettings, KeyStoreKind, ScheduleSettings
from device_sdk.device import Device
from device_sdk.wire.messages import (
    CheckIn,
    Cohorts,
    ComeBack,
    DeviceLevelTerms,
    Feedback,
    LocalObjective,
    ModelReference,
    PrivacyTerms,
    RecordLevelTerms,
    Relation,
    ReleaseHeader,
    ServerMessage,
    Task,
    UpdateHeader,
    UploadAccepted,
)
from device_sdk.wire.task_terms import mechanism_of
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from privacy import Ledger, PrivacyBudget
from privacy.ledger.entries import Released, Reserved
from server_kit.daemon.gateway import GatewaySettings
from server_kit.daemon.spool import Parcel
from tests.server_kit.daemon.memory_server import MemoryServer

Weights = dict[str, NDArray[np.float32]]

BUDGET = PrivacyBudget(epsilon=8, delta=1e-6)
OBJECTIVE = LocalObjective(learning_rate=0.5, batch_size=10, epochs=1)
DEVICE_LEVEL = DeviceLevelTerms(clip_norm="1", noise_multiplier="8", relation=Relation.REPLACE, grid_bits=17)
RECORD_LEVEL = RecordLevelTerms(
    clip_norm="1",
    noise_multiplier="2",
    sampling_rate="1/20",
    expected_batch_size="10",
    relation=Relation.REPLACE,
    grid_bits=8,
)
LEAVES = ("0.0", "0.1")
AT_ONCE = ScheduleSettings(first_seconds=0)
"""For tests in which time does not matter: what is done leaves when it is done."""


def no_weights(features: int, classes: int) -> Weights:
    """A softmax regression that knows nothing yet."""
    return {
        "dense1.weight": np.zeros((classes, features), np.float32),
        "dense1.bias": np.zeros(classes, np.float32),
    }


@dataclass
class Federation:
    """The server, and what it has done; a test may change `altered` to make it ask for something else."""

    server: MemoryServer
    weights: Weights
    objective: LocalObjective = OBJECTIVE
    terms: PrivacyTerms = DEVICE_LEVEL
    rounds: int = 3
    altered: Callable[[Task], Task] = lambda task: task
    with_feedback: bool = True
    says_when_final: bool = True
    tasks: dict[str, Task] = field(default_factory=dict)
    waiting: dict[str, Task] = field(default_factory=dict)
    """Tasks that were handed out and not answered, by device: given again at the next check-in."""
    mutex: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        desk = self.server.desk
        desk.cohorts = Cohorts(LEAVES)
        desk.answer = self.answer
        self._accept, self._decline = desk.accept, desk.decline
        desk.accept, desk.decline = self.accept, self.decline  # type: ignore[method-assign]

    @property
    def updates(self) -> list[tuple[UpdateHeader, bytes]]:
        """What was counted, in the order of arrival."""
        return [
            (header, payload) for _, header, payload in self.server.desk.accepted if isinstance(header, UpdateHeader)
        ]

    def config(self, home: Path) -> DeviceConfig:
        keys = KeySettings(KeyStoreKind.FILE, home / "device.key")
        return DeviceConfig(str(self.server.enrolment_address), home / "state", BUDGET, keys, schedule=AT_ONCE)

    def open(self, home: Path, **settings: Any) -> Device:
        """A device of this federation, not enrolled."""
        config = self.config(home)
        given: dict[str, Any] = {"budget": BUDGET, "keys": config.keys, "schedule": AT_ONCE, **settings}
        return Device.open(config.state, server=config.server, **given)

    def enrolled(self, home: Path, **settings: Any) -> Device:
        device = self.open(home, **settings)
        device.enrol(self.server.invitation().to_text())
        return device

    def answer(self, device: str, check_in: CheckIn) -> ServerMessage | None:
        with self.mutex:
            if device in self.waiting:
                return self.waiting[device]
            if len(self.tasks) >= self.rounds:
                return ComeBack(3600.0)
            task = self.altered(self._next_task(device, check_in))
            self.tasks[task.task] = self.waiting[device] = task
            return task

    def decline(self, device: str, decline: Any) -> None:
        with self.mutex:
            self.waiting.pop(device, None)
        self._decline(device, decline)

    def accept(self, device: str, header: ReleaseHeader, parcel: Parcel) -> UploadAccepted:
        accepted = self._accept(device, header, parcel)
        if isinstance(header, UpdateHeader) and not accepted.repeated:
            with self.mutex:
                self.waiting.pop(device, None)
                self._fold(self.tasks[header.task], parcel.read())
            if self.with_feedback:
                self.server.gateway.push(device, feedback_to(header))
        return replace(accepted, final=not self.with_feedback and self.says_when_final)

    def _next_task(self, device: str, check_in: CheckIn) -> Task:
        number = len(self.tasks) + 1
        body = model_bytes(self.weights)
        self.server.desk.blobs[blob_of(body).sha256] = body
        return Task(
            task=f"task-{number}",
            device=device,
            cohort=LEAVES[0] if check_in.affinity is None else check_in.affinity.cohort,
            round=number,
            model=ModelReference(number, blob_of(body), model_specs(self.weights)),
            objective=self.objective,
            privacy=self.terms,
            deadline_seconds=600.0,
        )

    def _fold(self, task: Task, payload: bytes) -> None:
        update = mechanism_of(task).decode(payload)
        if not task.objective.halves:
            self.weights = {name: part + update[name] for name, part in self.weights.items()}


def feedback_to(header: UpdateHeader, reward_change: float = 0.5) -> Feedback:
    return Feedback(header.cohort, header.round, mac=bytes(32), reward_change=reward_change, sub_cluster=1)


def started(home: Path, weights: Weights, *, gateway: GatewaySettings | None = None, **settings: Any) -> Federation:
    return Federation(MemoryServer(home / "spool", gateway), weights, **settings)


def entries_of(state: Path) -> list[Any]:
    """The events of a ledger, which is verified."""
    with Ledger.read(state) as ledger:
        ledger.verify()
        return [entry.event for entry in ledger.entries()]


def check_reconciled(federation: Federation, state: Path) -> None:
    """What the ledger has released is what the server has counted, byte hash for byte hash; and all of it was paid."""
    events = entries_of(state)
    released = [event.payload_hash for event in events if isinstance(event, Released)]
    counted = [hashlib.sha256(payload).hexdigest() for _, _, payload in federation.server.desk.accepted]
    assert released == counted
    assert len(set(released)) == len(released) == sum(isinstance(event, Reserved) for event in events)
