"""One code path: a population gives the same cohorts and the same models in a simulation and through the daemon.

Noise and order of arrival are fixed: devices train as the simulated ones do, their updates are rounded to the wire's
grid on both sides, and what arrives at the daemon arrives in the order of the simulation's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from device_sdk.wire.messages import Feedback, Task
from device_sdk.wire.tensors import read_model
from server_kit.cohort_tree import lineage
from server_kit.config import Privacy
from server_kit.interfaces import Answer, Order, Update
from server_kit.presets import strategy
from server_kit.simulation.fleet import SimulatedFleet
from server_kit.simulation.local_training import Expected
from server_kit.simulation.training import Trainer
from server_kit.simulation.virtual_time import _Simulation
from tests.server_kit.daemon.paper_server import Clock, PaperDevice, PaperServer
from tests.server_kit.engine.worlds import SPEC, people, small

PRIVACY = Privacy(level="device", clip_norm="64", noise_multiplier="4", grid_bits=17)
STEP = 64 / 2**17
ROUNDS, PARTICIPANTS, DEVICES = 6, 6, 12


def steps_of(delta: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An update in whole steps of the wire's grid."""
    return np.rint(delta.double().numpy() / STEP).astype(np.int64)


class OnTheGrid(SimulatedFleet):
    """Simulated devices that send what the wire can carry: whole steps, and nothing beside."""

    def train(self, work: Sequence[Expected]) -> Iterator[tuple[int, Update]]:
        for place, update in super().train(work):
            delta = torch.from_numpy((steps_of(update.delta) * STEP).astype(np.float32))
            yield place, replace(update, delta=delta, weight=1.0, loss=None, halves=None)

    def summed(self, *_: Any) -> None:
        """Each is rounded to the grid, so each must be seen."""


def simulated(name: str, overrides: dict[str, Any], trainer: Trainer) -> _Simulation:
    settings = small(rounds=ROUNDS, participants=PARTICIPANTS)
    simulation = _Simulation(
        people(devices=DEVICES), strategy(name, overrides), trainer, settings, seed=3, on_point=lambda _: None
    )
    simulation.fleet.__class__ = OnTheGrid
    return simulation


@dataclass
class Through:
    """The same population behind a daemon: `farm` trains for its devices, in virtual time."""

    server: PaperServer
    farm: OnTheGrid
    devices: dict[str, PaperDevice]
    """By their number in the population."""
    due: list[tuple[float, int]] = field(default_factory=list)
    evidence: dict[tuple[str, str], Feedback] = field(default_factory=dict)
    counted: int = 0
    splits: int = 0

    def run(self) -> None:
        while self.farm.round < ROUNDS:
            self.everyone_checks_in()
            self.server.coordinator.invite()
            self.begin_tasks()
            if not self.due:
                break
            at, number = heapq.heappop(self.due)
            self.server.clock.now = max(self.server.clock.now, at)
            self.upload(str(number))
            self.fold()

    def learn(self) -> None:
        """Let the coordinator learn from what was folded, and devices from what they are told."""
        leaves = self.server.coordinator.federation.leaves
        self.server.coordinator.learn()
        for number, device in self.devices.items():
            for message in device.messages:
                if isinstance(message, Feedback):
                    self.evidence[number, message.cohort] = message
                    said = Answer(number, message.cohort, message.round, message.reward_change, message.sub_cluster)
                    self.farm.tell([said], leaves)
        for split in self.server.coordinator.fleet.splits[self.splits :]:
            self.farm.tell_split(split.parent, split.children)
            self.splits += 1
        for device in self.devices.values():
            device.messages = [message for message in device.messages if isinstance(message, Task)]

    def everyone_checks_in(self) -> None:
        """Devices that are neither out nor waiting to be folded."""
        idle = [number for number in self.devices if number in self.farm.waiting(self.server.clock.now)]
        leaves = self.server.coordinator.federation.leaves
        for number, said in zip(idle, self.farm.check_ins(idle, leaves), strict=True):
            known = (self.evidence.get((number, each)) for each in lineage(said.cohort or "0"))
            self.devices[number].check_in(said.cohort, said.reward, next((e for e in known if e), None))

    def begin_tasks(self) -> None:
        new = [
            (number, each.task)
            for number, each in self.devices.items()
            if each.task and number not in self.farm.expected
        ]
        orders = [self.order(number, task) for number, task in new if task is not None]
        self.farm.dispatch(orders, self.server.clock.now)
        for order in orders:
            heapq.heappush(self.due, (self.farm.expected[order.device].at_seconds, int(order.device)))

    def order(self, number: str, task: Task) -> Order:
        content = self.server.models.find(task.model.blob.sha256)
        assert content is not None
        tensors = read_model(content, task.model.tensors)
        model = self.server.layout.pack({name: torch.from_numpy(each.copy()) for name, each in tensors.items()})
        plan = self.server.coordinator.plan.task
        return Order(number, task.cohort, task.model.version, model, replace(plan, proximal=task.objective.proximal))

    def upload(self, number: str) -> None:
        expected = self.farm.expected[number]
        assert self.farm.arrives(number, self.server.clock.now)
        ((_, update),) = self.farm.train([expected])
        self.devices[number].answer(self.sorted_by_name(update.delta))

    def sorted_by_name(self, delta: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
        views = self.server.layout.views(delta)
        return np.concatenate([steps_of(views[name].reshape(-1)) for name in sorted(views)])

    def fold(self) -> None:
        before = self.server.coordinator.federation.steps
        for record in self.server.store.cohorts():
            self.server.worker(record.cohort).step()
        told = len(self.server.store.happenings(kind="round"))
        self.learn()
        if self.server.coordinator.federation.steps == before:
            return
        for happening in self.server.store.happenings(kind="round")[told:]:
            self.counted += max(1, int(happening.facts["arrived"]))
        waiting = {task.device for task in self.server.store.tasks()}
        names = {device.id: number for number, device in self.devices.items()}
        busy = {names[device] for device in waiting}
        self.farm.forget([key for key in self.farm.delivered if key[0] not in busy])
        self.farm.round = self.counted // PARTICIPANTS


def through_the_daemon(tmp_path: Path, simulation: _Simulation, trainer: Trainer) -> Through:
    plan = simulation.federation.plan
    farm = OnTheGrid(simulation.fleet.population, trainer, 3, trains_ahead=plan.strategy.is_asynchronous)
    server = PaperServer(tmp_path, privacy=PRIVACY, layout=plan.layout, given=plan, clock=Clock(0.0))
    devices = sorted((server.device() for _ in range(DEVICES)), key=lambda device: device.id)
    # Choices by chance go by the order of names, so that it must be the same.
    return Through(server, farm, dict(zip(map(str, range(DEVICES)), devices, strict=True)))


FIXED = {"kind": "fixed_rounds", "rounds": [3]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one model": ("fedavg", {}),
    "over-commitment, late updates dropped": ("fedavg", {"over_commit": 1.5}),
    "late updates folded": ("fedavg", {"over_commit": 1.5, "fold_late": True}),
    "proximal": ("fedprox", {}),
    "adaptive": ("fedyogi", {}),
    "cohorts": ("auxo", {"formation": {"start_round": 1, "rule": FIXED, "clusterer": {"min_participants": 3}}}),
    "buffered": ("fedbuff", {"buffer": 3}),
    "asynchronous": ("fedasync", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_simulation_and_daemon_make_the_same_models(case: str, tmp_path: Path) -> None:
    name, overrides = CASES[case]
    with Trainer(SPEC) as trainer:
        simulation = simulated(name, overrides, trainer)
        simulation.begin()
        while not simulation._is_over() and simulation.step():
            pass
        daemon = through_the_daemon(tmp_path, simulation, trainer)
        try:
            daemon.run()
            ours, theirs = simulation.federation, daemon.server.coordinator.federation
            assert theirs.leaves == ours.leaves
            assert theirs.steps == ours.steps
            for leaf in ours.leaves:
                assert torch.equal(theirs.model(leaf), ours.model(leaf))
            if case == "cohorts":
                assert len(ours.leaves) == 2
        finally:
            daemon.server.close()
