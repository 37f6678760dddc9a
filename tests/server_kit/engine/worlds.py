"""Small worlds for the engine's tests: a few devices with handwritten digits, and runs that can be stopped."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch

from server_kit.local_task import LocalTask
from server_kit.presets import strategy
from server_kit.simulation.datasets import Dataset, Digits
from server_kit.simulation.partition import Equal, Iid, PartitionRule, RotationGroups
from server_kit.simulation.population import Population
from server_kit.simulation.records import Run
from server_kit.simulation.training import LogisticRegression, Trainer
from server_kit.simulation.virtual_time import RunSettings, _Simulation, simulate
from server_kit.strategy import Strategy

SPEC = LogisticRegression(64, 10)
TASK = LocalTask(learning_rate=0.1)
ALIKE = Iid(Equal(20))
TURNED = RotationGroups((0, 180), Iid(Equal(20)))


@cache
def digits() -> Dataset:
    return Digits().load()


def people(partition: PartitionRule = TURNED, devices: int = 12, **more: Any) -> Population:
    return Population(digits(), partition, devices, **more)


def small(rounds: int = 4, participants: int = 4, **more: Any) -> RunSettings:
    return RunSettings(rounds=rounds, participants=participants, **{"evaluate_every": 2, "task": TASK, **more})


def run(
    name: str | Strategy,
    population: Population | None = None,
    settings: RunSettings | None = None,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> Run:
    """A whole run of a preset, or of a strategy."""
    chosen = strategy(name, overrides) if isinstance(name, str) else name
    return simulate(population or people(), chosen, SPEC, settings or small(), seed)


@dataclass
class World:
    """A run that stops after every event, so that laws can be checked between them."""

    simulation: _Simulation
    population: Population
    trainer: Trainer

    @property
    def federation(self) -> Any:
        return self.simulation.federation

    @property
    def fleet(self) -> Any:
        return self.simulation.fleet

    @property
    def state(self) -> Any:
        return self.simulation.federation.state

    def events(self, most: int = 10_000) -> Iterator[int]:
        """Let things happen, one at a time, until the run is over."""
        for number in range(most):
            if self.simulation._is_over() or not self.simulation.step():
                return
            yield number

    def go_on(self, most: int = 10_000) -> None:
        for _ in self.events(most):
            pass

    def photograph(self) -> dict[str, Any]:
        """Everything that a run remembers, copied."""
        remembered = {name: vars(self.simulation)[name] for name in _REMEMBERED}
        fleet = {each.name: getattr(self.fleet, each.name) for each in fields(self.fleet) if each.name not in _GIVEN}
        return copy.deepcopy({"simulation": remembered, "fleet": fleet, "federation": self.state})

    def restore(self, photograph: dict[str, Any]) -> None:
        """Go on from there, in another process as it were."""
        copied = copy.deepcopy(photograph)
        vars(self.simulation).update(copied["simulation"])
        for name, value in copied["fleet"].items():
            setattr(self.fleet, name, value)
        self.federation.state = copied["federation"]


_REMEMBERED = ("_due", "_now", "_counted", "_idle", "_revealed_after", "_points", "_happenings")
_GIVEN = {"population", "trainer", "privacy"}


@contextlib.contextmanager
def world(
    name: str | Strategy,
    population: Population | None = None,
    settings: RunSettings | None = None,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    *,
    begun: bool = True,
) -> Iterator[World]:
    """The same as `run`, stopped before its first event."""
    chosen = strategy(name, overrides) if isinstance(name, str) else name
    population = population or people()
    with Trainer(SPEC) as trainer:
        simulation = _Simulation(population, chosen, trainer, settings or small(), seed=seed, on_point=lambda _: None)
        if begun:
            simulation.begin()
        yield World(simulation, population, trainer)


def same(one: Any, other: Any) -> bool:
    """Equal bit for bit, all the way down; NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and _bits(one) == _bits(other)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Mapping):
        alike = isinstance(other, Mapping) and list(one) == list(other)
        return alike and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    return bool(one == other)


def _bits(tensor: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(tensor.shape), tensor.contiguous().numpy().tobytes()
