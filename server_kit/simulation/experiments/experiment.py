"""An experiment: a population, a model, how to train, how long, and what to compare.

Every unit of work is a contender with a seed. The seed decides the population, so contenders are compared on
the same devices, speeds and absences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from server_kit.reading import fields_of
from server_kit.simulation.attacks import Attack
from server_kit.simulation.datasets import Dataset, DataSource
from server_kit.simulation.experiments.model import Model
from server_kit.simulation.experiments.run_json import to_json
from server_kit.simulation.population import Population

if TYPE_CHECKING:
    from server_kit.simulation.experiments.experiment_file import ExperimentFile
    from server_kit.simulation.records import Point, Run
    from server_kit.simulation.virtual_time import RunSettings

TABLES = ("population", "model", "training", "run", "privacy", "compare")


@dataclass(frozen=True)
class Repeats:
    """Settings of [run] beside those of `RunSettings` itself."""

    seeds: int = 3
    first_seed: int = 0
    targets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Contender:
    """One entry of [[compare]]."""

    preset: str
    name: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    attack: Attack | None = None
    """In place of the population's: how a guard does against several attacks is a comparison too."""


@dataclass(frozen=True, order=True)
class Unit:
    """A piece of work: one contender with one seed."""

    contender: str
    seed: int

    def __str__(self) -> str:
        return f"{self.contender}, seed {self.seed}"


@dataclass(frozen=True, eq=False)
class Experiment:
    """What is to be run; makes the population and the model of each seed."""

    file: ExperimentFile
    tables: Mapping[str, Any]
    source: DataSource
    devices: int
    fleet: Mapping[str, Any]
    model: Model
    settings: RunSettings
    repeats: Repeats
    contenders: tuple[Contender, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """All work, seed by seed, so that what is finished early can be compared."""
        first = self.repeats.first_seed
        seeds = range(first, first + self.repeats.seeds)
        return tuple(Unit(contender.name, seed) for seed in seeds for contender in self.contenders)

    def contender(self, name: str) -> Contender:
        return next(contender for contender in self.contenders if contender.name == name)

    @cached_property
    def dataset(self) -> Dataset:
        return self.source.load()

    def population(self, seed: int) -> Population:
        """The fleet of a seed, the same for every contender."""
        return self._population(seed)

    @cached_property
    def _population(self) -> Callable[[int], Population]:
        # Units come seed by seed, so the latest fleet is the one that is wanted again.
        @lru_cache(maxsize=1)
        def make(seed: int) -> Population:
            return Population(self.dataset, num_devices=self.devices, seed=seed, **self.fleet)

        return make

    def check_data(self) -> None:
        """Read the data and deal them once, so that what cannot work is said before anything runs."""
        first = self.population(self.repeats.first_seed)
        self.model.spec(self.dataset, self.repeats.first_seed)
        _ = first.seen

    @property
    def hidden(self) -> Literal["record", "device"] | None:
        """What the privacy terms hide; None without terms."""
        return None if self.settings.privacy is None else self.settings.privacy.unit

    def run(self, unit: Unit, on_point: Callable[[Point], None] | None = None) -> Run:
        """Do one unit of work."""
        from server_kit.presets import strategy
        from server_kit.simulation.virtual_time import simulate

        contender = self.contender(unit.contender)
        population = self.population(unit.seed)
        ended = simulate(
            population if contender.attack is None else replace(population, attack=contender.attack),
            strategy(contender.preset, contender.overrides, unit=self.hidden),
            self.model.spec(self.dataset, unit.seed),
            self.settings,
            unit.seed,
            on_point=on_point,
        )
        return replace(ended, preset=contender.preset, seed=unit.seed)

    def terms(self, unit: Unit) -> dict[str, Any]:
        """Everything in the file that decides how a unit ends; more seeds, contenders or targets change none of it."""
        contender = self.contender(unit.contender)
        tables = {name: dict(self.tables.get(name, {})) for name in TABLES if name != "compare"}
        for name in fields_of(Repeats):
            tables["run"].pop(name, None)
        compared: dict[str, Any] = {"preset": contender.preset, "overrides": contender.overrides}
        if contender.attack is not None:
            compared["attack"] = [type(contender.attack).__name__, to_json(contender.attack)]
        return {**tables, "compare": compared}
