"""The mind of a daemon without its processes and wires: desk, coordinator and workers share a store and a fake clock.

Scripted devices check in, get tasks and upload integers that a test chooses, signed and with honest receipts. Any part
can be thrown away and made anew at any moment, as `kill -9` would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from device_sdk.wire.codec import decode, encode_from_server
from device_sdk.wire.messages import (
    AffinityClaim,
    CheckIn,
    Decline,
    DeclineReason,
    DeviceLevelTerms,
    Feedback,
    GridEncoding,
    Question,
    Relation,
    ReleaseHeader,
    ServerMessage,
    Task,
    UpdateHeader,
    UploadAccepted,
)
from device_sdk.wire.question_terms import mechanism_of as question_mechanism
from device_sdk.wire.signing import signed
from device_sdk.wire.task_terms import mechanism_of
from device_sdk.wire.tensors import blob_of
from privacy.budget import NeighbouringRelation
from privacy.keys import SigningKey
from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.packing import pack, pack_array
from server_kit.checkpoints import Checkpoints
from server_kit.config import Privacy
from server_kit.daemon.cohort_worker import CohortWorker
from server_kit.daemon.coordinator import Bells, Coordinator
from server_kit.daemon.feedback_mac import FeedbackSeal
from server_kit.daemon.gathering import Patience
from server_kit.daemon.intake_checks import IntakeChecks
from server_kit.daemon.live_desk import Identity, LiveDesk
from server_kit.daemon.live_fleet import LiveFleet
from server_kit.daemon.model_shelf import ModelShelf
from server_kit.daemon.pretraining import Pretraining
from server_kit.daemon.promise import Promise
from server_kit.daemon.questions import Questions
from server_kit.daemon.register import EnrolledDevice
from server_kit.daemon.spool import Parcel
from server_kit.daemon.task_writer import TaskWriter
from server_kit.daemon.wanted import WantedSummaries
from server_kit.federation_state import Plan
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.metrics import Meter
from server_kit.presets import strategy
from server_kit.store.blobs import open_blobs
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import Store
from tests.device_sdk.wire.devices import TestDevice

LAYOUT = Layout((("w", (6,)), ("b", (2,))))
TERMS = DeviceLevelTerms(clip_norm="1", noise_multiplier="4", relation=Relation.REPLACE, grid_bits=8)
SERVER = "covey:test"


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class PaperDevice:
    """One device: what it was sent, and how it answers."""

    server: PaperServer
    keys: TestDevice = field(default_factory=TestDevice)
    messages: list[ServerMessage] = field(default_factory=list)
    last_upload: tuple[UpdateHeader, bytes] | None = None

    @property
    def id(self) -> str:
        return self.keys.id

    @property
    def task(self) -> Task | None:
        """The newest task, if it was not answered."""
        tasks = [message for message in self.messages if isinstance(message, Task)]
        return tasks[-1] if tasks else None

    def connect(self) -> PaperDevice:
        self.server.desk.welcome(self.id)
        self.server.connected[self.id] = self
        return self

    def disconnect(self, *, leaving: bool = False) -> None:
        self.server.connected.pop(self.id, None)
        self.server.desk.gone(self.id, leaving=leaving)

    def check_in(self, cohort: str | None = None, reward: float = 0.0, evidence: Feedback | None = None) -> None:
        claim = None if cohort is None else AffinityClaim(cohort, reward, evidence)
        answer = self.server.desk.check_in(self.id, CheckIn(claim))
        if answer is not None:
            self.messages.append(answer)

    def decline(self) -> None:
        assert self.task is not None
        self.server.desk.decline(self.id, Decline(self.task.task, DeclineReason.NOT_NOW))
        self.messages.clear()

    def answer(self, values: Any = 1, **altered: Any) -> UploadAccepted:
        """Upload an update of these grid steps (one number, or eight in the order of tensor names)."""
        assert self.task is not None
        header, payload = self.upload_of(self.task, values)
        self.messages.clear()
        return self.send(replace(header, **altered), payload)

    def tell_loss(self, loss: float) -> None:
        """Answer the server's question about a loss, with hardly any noise."""
        question = next(message for message in self.messages if isinstance(message, Question))
        mechanism = question_mechanism(question, NeighbouringRelation.REPLACE)
        assert isinstance(mechanism, BoundedScalar)
        payload = pack([round(loss / mechanism.high * mechanism.steps)])
        self.send(self.keys.summary(payload, mechanism, question.question), payload)

    def upload_of(self, task: Task, values: Any) -> tuple[UpdateHeader, bytes]:
        width = mechanism_of(task).width_bytes
        payload = pack_array(np.broadcast_to(np.asarray(values, dtype=np.int64), (self.server.layout.size,)), width)
        plain = self.keys.update(payload, task.task, mechanism_of(task))
        header = replace(
            plain,
            cohort=task.cohort,
            round=task.round,
            model_sha256=task.model.blob.sha256,
            encoding=GridEncoding(self.server.layout.size, width),
            signature=b"",
        )
        self.last_upload = (signed(header, self.id, self.keys.signing), payload)
        return self.last_upload

    def send(self, header: ReleaseHeader, payload: bytes) -> UploadAccepted:
        accepted = self.server.desk.announce(self.id, header)
        if accepted is None:
            accepted = self.server.desk.accept(self.id, header, Parcel(blob_of(payload), memoryview(payload)))
        return accepted

    def send_again(self) -> UploadAccepted:
        assert self.last_upload is not None
        return self.send(*self.last_upload)


@dataclass
class PaperServer:
    """Everything behind the gateway. `restart_…` throws a process's memory away."""

    directory: Path
    preset: str = "fedavg"
    overrides: dict[str, Any] = field(default_factory=dict)
    participants: int = 4
    patience: Patience = field(default_factory=Patience)
    store: Store = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=Clock)
    privacy: Privacy = field(default_factory=lambda: Privacy(level="device", noise_multiplier="4", grid_bits=8))
    connected: dict[str, PaperDevice] = field(default_factory=dict)
    workers: dict[str, CohortWorker] = field(default_factory=dict)
    layout: Layout = LAYOUT
    given: Plan | None = None
    """Instead of the small one."""
    promise: Callable[[], Promise] | None = None
    """Made anew with the coordinator's process; None: nothing is promised."""
    plan: Plan = field(init=False)
    started: bool = False
    desk: LiveDesk = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.seal = SigningKey.generate(), FeedbackSeal(bytes(32))
        self.models = ModelShelf(self.directory / "models")
        self.checkpoints = Checkpoints(open_blobs(str(self.directory / "blobs")), self.directory / "scratch")
        self.plan = self.given or Plan(
            strategy(self.preset, {"deadline_seconds": 100.0, **self.overrides}),
            LocalTask(0.1, steps=2),
            LAYOUT,
            self.participants,
            lambda number: torch.full((LAYOUT.size,), float(number)),
        )
        self.restart_coordinator()

    def restart_coordinator(self) -> None:
        """The coordinator's process begins anew; every device has lost its stream."""
        if self.started:
            self.desk.close()
        self.started = True
        self.connected.clear()
        self.desk = LiveDesk(
            self.store,
            Identity(SERVER, self.key),
            self.seal,
            self.models,
            IntakeChecks(self.wanted, clock=self.clock),
            wake=lambda: None,
            arrived=lambda _: None,
            promise=None if self.promise is None else self.promise(),
            clock=self.clock,
        )
        lease = self.store.acquire("coordinator", "test", 1e9, self.clock())
        assert lease is not None
        self.coordinator = Coordinator(
            self.store,
            self.checkpoints,
            self.plan,
            self.desk,
            self.push,
            Bells(),
            Meter("coordinator"),
            lease,
            self.patience,
            self.clock,
        )
        writer = TaskWriter(self.layout, self.models, self.privacy.terms(), 100.0)
        pretraining = Pretraining(
            self.store,
            writer,
            self.layout,
            self.desk.presence.here,
            self.coordinator.hand_out,
            self.desk.give_up,
            0.0,
            self.clock,
        )
        self.questions = Questions(self.store, self.push)
        fleet = LiveFleet(
            self.store,
            self.desk,
            self.questions,
            writer,
            self.seal,
            self.privacy,
            self.coordinator.book,
            pretraining,
            self.coordinator.round_of,
            patience_seconds=0.0,
        )
        self.coordinator.begin(fleet, pretraining)

    @property
    def wanted(self) -> WantedSummaries:
        return WantedSummaries.of(
            self.privacy, self.plan.strategy, self.plan.layout, asks_for_accuracy=True, most_epsilon=8.0
        )

    def restart_workers(self) -> None:
        self.workers.clear()

    def push(self, device: str, message: ServerMessage) -> bool:
        encode_from_server(message)
        there = self.connected.get(device)
        if there is None:
            return False
        if isinstance(message, Question):
            self.desk.checks.asking(message)
        there.messages.append(message)
        return True

    def device(self) -> PaperDevice:
        """One that is enrolled and connected."""
        made = PaperDevice(self, TestDevice(server=SERVER))
        self.store.register.add(EnrolledDevice(made.id, made.keys.signing.public_key, made.keys.ledger.public_key))
        return made.connect()

    def devices(self, count: int) -> list[PaperDevice]:
        """By the order of their names, all waiting."""
        made = sorted((self.device() for _ in range(count)), key=lambda device: device.id)
        for device in made:
            device.check_in()
        return made

    def worker(self, cohort: str) -> CohortWorker:
        if cohort not in self.workers:
            lease = self.store.acquire(f"cohort {cohort}", "test", 1e9, self.clock())
            assert lease is not None
            self.workers[cohort] = CohortWorker(
                cohort,
                self.store,
                self.checkpoints,
                self.models,
                self.plan,
                lease,
                Meter("worker"),
                clock=self.clock,
            )
        return self.workers[cohort]

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass, and everyone do what they can."""
        self.clock.now += seconds
        self.coordinator.step()
        for record in self.store.cohorts():
            self.worker(record.cohort).step()
        self.coordinator.step()

    def model(self, cohort: str = "0") -> torch.Tensor:
        return self.coordinator.federation.model(cohort)

    def close(self) -> None:
        self.desk.close()


def step_of(task: Task) -> float:
    """What one grid step adds to a weight."""
    return float(mechanism_of(task).step)


def decoded_task(message: bytes) -> Task:
    return decode(Task, message)
