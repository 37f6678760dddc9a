"""First updates: some devices train once before there are cohorts, so that they can be told apart (FedGroup, FL+HC).

They are tasks like any other, but belong to no cohort's round. Their updates lie in the store until what was learned
from them is in a checkpoint, so a coordinator that dies in between asks nobody twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import Task
from server_kit.cohort_tree import ROOT
from server_kit.daemon.live_fleet import booked
from server_kit.daemon.stored_updates import UnreadableUpdate, count_unreadable, read_update
from server_kit.interfaces import Order
from server_kit.steady_clock import steady_seconds
from server_kit.store.protocol import Asking, TaskRecord, TaskState

if TYPE_CHECKING:
    import torch

    from device_sdk.wire.messages import DeviceId
    from server_kit.daemon.task_writer import TaskWriter
    from server_kit.interfaces import SummaryRequest
    from server_kit.layout import Layout
    from server_kit.store.protocol import Store, TaskId

FOUNDING = "founding"
"""What such tasks belong to in the store."""

HandOut = Callable[[Sequence[Task], list[TaskRecord]], None]


@dataclass
class Pretraining:
    """Asks for first updates and waits for them."""

    store: Store
    writer: TaskWriter
    layout: Layout
    here: Callable[[], set[DeviceId]]
    hand_out: HandOut
    give_up: Callable[[TaskRecord], None]
    patience_seconds: float = 60.0
    clock: Callable[[], float] = steady_seconds
    _used: set[TaskId] = field(default_factory=set)
    _are_some: bool = True
    """Whether the store may hold tasks of ours."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def notice(self) -> None:
        """Something has arrived, or someone has gone."""
        with self._changed:
            self._changed.notify_all()

    def __call__(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        """The updates of those devices that answer within the time."""
        self._ask(request, devices)
        wanted, until = set(devices), time.monotonic() + self.patience_seconds
        with self._changed:
            while self._outstanding(wanted) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
        arrived = [task for task in self._tasks() if task.state is TaskState.ARRIVED and task.device in wanted]
        self._used.update(task.task for task in arrived)
        found = {task.device: self._read(task) for task in arrived}
        return {device: update for device, update in found.items() if update is not None}

    def _read(self, task: TaskRecord) -> torch.Tensor | None:
        try:
            return read_update(self.store, task, decode(Task, task.message), self.layout)
        except UnreadableUpdate as fault:
            count_unreadable(self.store, fault, self.clock())
            return None

    def ended(self, known: Container[DeviceId]) -> dict[TaskId, TaskState]:
        """What becomes of updates once it is durable what was learned; those of devices not `known` yet are kept."""
        if not self._are_some:
            return {}
        tasks = self._tasks()
        self._are_some = bool(tasks)
        return {
            task.task: TaskState.FOLDED if task.task in self._used else TaskState.LATE
            for task in tasks
            if task.state is TaskState.ARRIVED and (task.task in self._used or task.device in known)
        }

    def settle(self, known: Container[DeviceId]) -> None:
        """What was learned is durable: `known` devices that have not answered are given up."""
        self._used.clear()
        if self._are_some:
            for task in self._tasks():
                if task.state is TaskState.OUT and task.device in known:
                    self.give_up(task)

    def _ask(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> None:
        if request.model is None or request.task is None:
            return
        asked = {task.device for task in self._tasks()}
        new = [device for device in devices if device not in asked and device in self.here()]
        # Each start has another number, so that a model is not taken for the one before.
        version = int(self.clock() * 1000)
        orders = [Order(device, ROOT, version, request.model, request.task) for device in new]
        tasks = [self.writer.task(order, 0) for order in orders]
        records = [replace(booked(task, 0, self.clock()), cohort=FOUNDING) for task in tasks]
        if records:
            self._are_some = True
            self.store.ask(Asking(records, ()))
            self.hand_out(tasks, records)

    def _outstanding(self, wanted: set[DeviceId]) -> bool:
        here = self.here()
        return any(
            task.state is TaskState.OUT and task.device in wanted and task.device in here for task in self._tasks()
        )

    def _tasks(self) -> list[TaskRecord]:
        return self.store.tasks(FOUNDING)
