"""From an experiment's TOML file to the experiment; docs/experiments.md lists the settings.

experiment = ExperimentFile.open(Path("quick.toml")).read()
run = experiment.run(Unit("auxo", seed=0))
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_kit.errors import InvalidSetting
from server_kit.places import Place, nearest
from server_kit.reading import Reader, fields_of
from server_kit.simulation.datasets import DataSource, find_dataset
from server_kit.simulation.experiments.experiment import TABLES, Contender, Experiment, Repeats
from server_kit.simulation.experiments.kinds import KINDS
from server_kit.simulation.experiments.model import read_model
from server_kit.simulation.population import Population

if TYPE_CHECKING:
    from server_kit.simulation.virtual_time import RunSettings

NOT_FOR_FILES = {
    "population": ("dataset", "num_devices", "seed"),
    "training": ("mask", "halves"),
    "run": ("task", "privacy"),
}
"""Arguments that follow from something else: the seed, another table, or the strategy."""


@dataclass(frozen=True)
class Data:
    """Settings of [population] beside those of `Population` itself."""

    dataset: Any = "digits"
    data_dir: Path | None = None
    devices: int = 100


@dataclass(frozen=True)
class ExperimentFile:
    """The text of a file as it was when it was read: what a worker gets, whatever is edited meanwhile."""

    name: str
    text: str
    folder: Path
    seeds: int | None = None
    """In place of the file's own number."""
    data_dir: Path | None = None

    @classmethod
    def open(cls, path: Path, *, seeds: int | None = None, data_dir: Path | None = None) -> ExperimentFile:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidSetting(f"{path.name} is not a text in UTF-8; nothing was run") from error
        return cls(path.name, text, path.absolute().parent, seeds, data_dir)

    def read(self) -> Experiment:
        """The experiment; every name and value in the file has been checked, no data have been read."""
        place = Place(self.name)
        try:
            tables = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise place.wrong(f"is no TOML ({error})") from error
        for name, table in tables.items():
            if name not in TABLES:
                raise place.unknown("table", name, TABLES)
            if not isinstance(table, list if name == "compare" else dict):
                raise place.wrong(
                    f"{name} must be a table, written {'[[compare]]' if name == 'compare' else f'[{name}]'}"
                )
        return _Reading(Reader(self.folder, KINDS), tables, place).experiment(self)


@dataclass(frozen=True)
class _Reading:
    """Table by table."""

    reader: Reader
    tables: Mapping[str, Any]
    place: Place

    def experiment(self, file: ExperimentFile) -> Experiment:
        source, devices, fleet = self._population(file.data_dir)
        settings, repeats = self._run()
        repeats = replace(repeats, seeds=repeats.seeds if file.seeds is None else file.seeds)
        if repeats.seeds < 1 or repeats.first_seed < 0:
            raise self.place.inside("run").wrong("seeds start at 0 and there must be one at least")
        return Experiment(
            file=file,
            tables=self.tables,
            source=source,
            devices=devices,
            fleet=fleet,
            model=read_model(self.reader, self.tables.get("model", {}), self.place.inside("model")),
            settings=settings,
            repeats=repeats,
            contenders=self._contenders(),
        )

    def _population(self, data_dir: Path | None) -> tuple[DataSource, int, dict[str, Any]]:
        place = self.place.inside("population")
        fleet = self._settings("population", Population, Data)
        data = Data(**{name: fleet.pop(name) for name in fields_of(Data) if name in fleet})
        if data.devices < 1:
            raise place.wrong(f"devices must be at least 1, got {data.devices}")
        if "partition" not in fleet:
            raise place.wrong("setting 'partition' is missing")
        return self._source(data.dataset, data_dir or data.data_dir, place), data.devices, fleet

    def _source(self, dataset: Any, data_dir: Path | None, place: Place) -> DataSource:
        kinds = KINDS[DataSource]
        if isinstance(dataset, str) and dataset not in kinds and ":" not in dataset:
            if data_dir is None:
                raise place.wrong(_no_folder(dataset, kinds))
            with place.named_in_errors():
                return find_dataset(dataset, data_dir)
        source: DataSource = self.reader.rule(kinds, dataset, place.inside("dataset"))
        return source

    def _run(self) -> tuple[RunSettings, Repeats]:
        from server_kit.simulation.privacy_terms import PrivacyTerms
        from server_kit.simulation.training import LocalTask
        from server_kit.simulation.virtual_time import RunSettings

        run = self._settings("run", RunSettings, Repeats)
        repeats = Repeats(**{name: run.pop(name) for name in fields_of(Repeats) if name in run})
        if not all(0 < target <= 1 for target in repeats.targets):
            raise self.place.inside("run").wrong(f"targets are shares from 0 to 1, got {repeats.targets}")
        task = self._settings("training", LocalTask)
        with self.place.inside("training").named_in_errors():
            run["task"] = LocalTask(**task)
        if "privacy" in self.tables:
            place = self.place.inside("privacy")
            run["privacy"] = self.reader.rule({}, self.tables["privacy"], place, only=PrivacyTerms)
        with self.place.inside("run").named_in_errors():
            return RunSettings(**run), repeats

    def _settings(self, table: str, *makers: Callable[..., Any]) -> dict[str, Any]:
        place, without = self.place.inside(table), NOT_FOR_FILES[table]
        return self.reader.settings(self.tables.get(table, {}), place, *makers, without=without)

    def _contenders(self) -> tuple[Contender, ...]:
        found = [self._contender(number, entry) for number, entry in enumerate(self.tables.get("compare", ()), start=1)]
        if not found:
            raise self.place.wrong('nothing to run: add a table [[compare]] with preset = "covey"')
        names = [contender.name for contender in found]
        for name in names:
            if names.count(name) > 1:
                raise self.place.inside("compare").wrong(f"two entries are called {name!r}; give one another name")
        return tuple(found)

    def _contender(self, number: int, entry: Any) -> Contender:
        from server_kit.presets import strategy

        place = self.place.inside(f"compare {number}")
        if not isinstance(entry, dict):
            raise place.wrong("must be a table, written [[compare]]")
        contender = Contender(**self.reader.settings(entry, place, Contender))
        with place.named_in_errors():
            strategy(contender.preset, contender.overrides)
        return replace(contender, name=contender.name or contender.preset)


def _no_folder(dataset: str, kinds: Mapping[str, Any]) -> str:
    return f"unknown dataset {dataset!r}{nearest(dataset, kinds)} (give data_dir for one in a file)"
