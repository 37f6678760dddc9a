"""A federation of few numbers: devices that answer what the test tells them to, behind the real engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from device_sdk.affinity import AffinityRecord, Feedback
from server_kit.cohort_tree import distance
from server_kit.federation import Change, Federation
from server_kit.federation_state import Plan
from server_kit.interfaces import Answer, CheckIn, CohortId, DeviceId, Order, Seen, SummaryRequest, Update
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.round import MemoryShelf
from server_kit.strategy import Strategy

SIZE = 4


@dataclass
class ScriptedFleet:
    """Devices whose updates, summaries and choices are functions of the test; the first of equal choices wins."""

    devices: list[DeviceId]
    delta: Callable[[DeviceId, Order], Sequence[float]] = lambda device, order: [1.0] * SIZE
    row: Callable[[DeviceId], Sequence[float]] = lambda device: [1.0] * SIZE
    prefers: Callable[[DeviceId, torch.Tensor], int] = lambda device, model: 0
    honesty: float = 1.0
    requests: dict[DeviceId, CheckIn] = field(default_factory=dict)
    changed: set[DeviceId] = field(default_factory=set)
    records: dict[DeviceId, AffinityRecord] = field(default_factory=dict)
    asked_for_summaries: list[tuple[DeviceId, ...]] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)

    def waiting(self, now_seconds: float) -> Sequence[DeviceId]:
        return list(self.devices)

    def check_ins(
        self, devices: Sequence[DeviceId], leaves: Sequence[CohortId], *, exploring: bool = True
    ) -> Sequence[CheckIn]:
        said = [self.requests.get(device, CheckIn(device)) for device in devices]
        return [replace(each, changed=each.device in self.changed) for each in said]

    def dispatch(self, orders: Sequence[Order], now_seconds: float) -> None:
        self.orders += orders

    def summaries(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        self.asked_for_summaries.append(tuple(devices))
        return {device: torch.tensor(self.row(device)) for device in devices}

    def choices(self, devices: Sequence[DeviceId], models: torch.Tensor) -> Mapping[DeviceId, int]:
        return {device: self.prefers(device, models) for device in devices}

    def candour(self, options: int) -> float:
        return self.honesty

    def tell(self, answers: Sequence[Answer], leaves: Sequence[CohortId]) -> None:
        for answer in answers:
            record = self.records.get(answer.device, AffinityRecord())
            feedback = Feedback(answer.cohort, answer.round, answer.reward_change, answer.sub_cluster)
            self.records[answer.device] = record.learned(feedback, leaves, distance)

    def tell_split(self, cohort: CohortId, children: Sequence[CohortId]) -> None:
        self.records = {device: record.after_split(cohort, children) for device, record in self.records.items()}


@dataclass
class Play:
    """A federation on a scripted fleet, moved on by hand."""

    strategy: Strategy
    fleet: ScriptedFleet
    participants: int = 100
    seed: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.shelf = MemoryShelf()
        plan = Plan(
            self.strategy,
            LocalTask(learning_rate=0.1),
            Layout((("weight", (SIZE,)),)),
            self.participants,
            lambda number: torch.full((SIZE,), float(number)),
            self.seed,
        )
        self.federation = Federation(plan, self.fleet, lambda _: self.shelf)

    @property
    def state(self) -> Any:
        return self.federation.state

    def invite(self) -> list[Order]:
        return self.federation.invite(self.now)

    def answer(self, order: Order, *, seconds: float = 1.0) -> None:
        """The device of this order trains as the test says, and its answer arrives."""
        delta = torch.tensor(self.fleet.delta(order.device, order))
        self.shelf.put(Update(order.device, delta, order.version, base=order.model, mask=order.task.mask))
        self.now += seconds
        self.federation.receive(order.device, self.now)

    def round(self, *, seconds: float = 0.0) -> list[Change]:
        """Everybody who is asked answers; every leaf that can moves on."""
        for order in self.invite():
            self.answer(order, seconds=seconds)
        self.now += 1.0
        due = self.federation.due(self.now)
        changes = [self.federation.fold(leaf, self.now)[1] for leaf in due if self.state.tree.is_leaf(leaf)]
        return [change for change in changes if change is not None]


def seen(
    updates: Mapping[DeviceId, Sequence[float]],
    round_number: int = 10,
    cohort: CohortId = "0",
    *,
    claims: Mapping[DeviceId, CheckIn] | None = None,
    versions: Sequence[int] | None = None,
    mixing_rate: float | None = None,
    halves: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Seen:
    """One step of a cohort, written out."""
    return Seen(
        cohort,
        round_number,
        tuple(updates),
        tuple(versions if versions is not None else [0] * len(updates)),
        torch.tensor(list(updates.values()), dtype=torch.float32),
        halves,
        claims or {},
        mixing_rate,
    )


def names(count: int, letter: str = "d") -> list[DeviceId]:
    return [f"{letter}{number}" for number in range(count)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)
