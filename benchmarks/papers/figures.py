"""What each finished run came to, in a line: kept beside the experiments, so that tables grow from one day to the next.

    benchmarks/papers/results/NAME.csv      a line for each contender and seed of NAME.toml

A line says under which terms it was run, presets spelled out, as a digest. Whoever changes an experiment or a preset
makes its lines stale: they count no more, and the next runs replace them.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from server_kit.presets import table_of
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.results_folder import Finished
from server_kit.simulation.experiments.run_json import to_json
from server_kit.simulation.experiments.summary import LAST, estimate, final_of, late_mean
from server_kit.simulation.metrics import final_accuracy, first_reaching

RESULTS = Path(__file__).parent / "results"
_HEAD = ("contender", "seed", "terms", "commit")
_FIGURES = ("final", "best", "worst_tenth", "cohorts", "agreement", "epsilon", "backdoor")
_DIGITS = 6


@dataclass(frozen=True)
class Figures:
    """One run; shares from 0 to 1, None where there is nothing to say."""

    unit: Unit
    terms: str
    commit: str
    final: float | None
    best: float | None
    worst_tenth: float | None
    cohorts: float | None
    agreement: float | None
    epsilon: float | None
    backdoor: float | None
    """How often a backdoor's trigger does what it should, in the mean of the last ten evaluations."""
    seconds_to: Mapping[float, float]
    """Virtual seconds to each target that was reached."""


def figures_of(experiment: Experiment, finished: Finished) -> Figures:
    """A run in a line."""
    run, last = finished.run, finished.run.points[-1]
    reached = {target: first_reaching(run.curve, target) for target in experiment.repeats.targets}
    return Figures(
        unit=finished.unit,
        terms=terms_of(experiment, finished.unit),
        commit=finished.commit or "unknown",
        final=final_of(run),
        best=final_accuracy(run.curve).best,
        worst_tenth=late_mean(run, "worst_tenth"),
        cohorts=float(len(last.cohorts)),
        agreement=last.agreement,
        epsilon=last.epsilon,
        backdoor=None if (late := estimate(point.backdoor for point in run.points[-LAST:])) is None else late.mean,
        seconds_to={target: point.seconds for target, point in reached.items() if point is not None},
    )


def terms_of(experiment: Experiment, unit: Unit) -> str:
    """All that decides how a unit ends, but for the code: the file's settings and what its preset stands for."""
    contender = experiment.contender(unit.contender)
    preset = table_of(contender.preset, contender.overrides, experiment.hidden)
    said = json.dumps([to_json(experiment.terms(unit)), preset], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def current(experiment: Experiment, kept: Iterable[Figures]) -> dict[Unit, Figures]:
    """The lines that were run as the experiment and its presets stand now."""
    units = set(experiment.units)
    return {each.unit: each for each in kept if each.unit in units and each.terms == terms_of(experiment, each.unit)}


def read(path: Path) -> list[Figures]:
    """The lines of a file; none if there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [_read(row) for row in csv.DictReader(stream)]


def write(path: Path, kept: Iterable[Figures], targets: Iterable[float]) -> None:
    """All lines, in an order that makes changes easy to read."""
    path.parent.mkdir(exist_ok=True)
    ordered, targets = sorted(kept, key=lambda each: each.unit), tuple(targets)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*_HEAD, *_FIGURES, *(_column(target) for target in targets)])
        for each in ordered:
            figures = [
                *(getattr(each, name) for name in _FIGURES),
                *(each.seconds_to.get(target) for target in targets),
            ]
            writer.writerow([each.unit.contender, each.unit.seed, each.terms, each.commit, *map(_shown, figures)])


def _column(target: float) -> str:
    return f"seconds_to_{target:g}"


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.{_DIGITS}g}"


def _read(row: Mapping[str, str]) -> Figures:
    figures = {name: float(row[name]) if row.get(name) else None for name in _FIGURES}
    times = {name: text for name, text in row.items() if name.startswith("seconds_to_") and text}
    return Figures(
        unit=Unit(row["contender"], int(row["seed"])),
        terms=row["terms"],
        commit=row["commit"],
        **figures,
        seconds_to={float(name.removeprefix("seconds_to_")): float(text) for name, text in times.items()},
    )
