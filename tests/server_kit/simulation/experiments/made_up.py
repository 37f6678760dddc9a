"""Runs that were never run, and work that takes no time, for the tests of what is done with results."""

from __future__ import annotations

import math
import os
import signal
import textwrap
from pathlib import Path

import numpy as np

from server_kit.simulation.experiments.experiment import Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.results_folder import Finished
from server_kit.simulation.fairness import accuracy_spread
from server_kit.simulation.metrics import Progress
from server_kit.simulation.records import CohortPoint, Happening, Point, Run

SMALL = """
    [population]
    devices = 12
    partition = "iid"
    [model]
    kind = "logistic"
    [training]
    learning_rate = 0.1
    [run]
    rounds = 6
    participants = 4
    evaluate_every = 1
    seeds = 2
    targets = [0.2]
    [[compare]]
    preset = "fedavg"
    [[compare]]
    preset = "fedprox"
"""


def experiment_file(folder: Path, text: str = SMALL, *, seeds: int | None = None) -> ExperimentFile:
    path = folder / "experiment.toml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return ExperimentFile.open(path, seeds=seeds)


def compared(*names: str) -> str:
    """The small experiment with these contenders, whatever they are called."""
    head = SMALL.partition("[[compare]]")[0]
    return head + "".join(f'\n    [[compare]]\n    preset = "fedavg"\n    name = "{name}"' for name in names)


def run(seed: int = 0, *, level: float = 0.8, points: int = 21, cohorts: int = 1, truth: bool = True) -> Run:
    """A run whose accuracy climbs to `level`; half-way it splits into so many cohorts, and at the end it may merge."""
    rng = np.random.default_rng([seed, round(1000 * level), cohorts])
    made = []
    accuracies = np.full(40, math.nan)
    for number in range(points):
        accuracies = np.clip(level * (1 - math.exp(-number / 4)) + rng.normal(0, 0.05, 40), 0, 1)
        split = cohorts > 1 and points // 2 <= number < points - 2
        homes = np.arange(40) % cohorts if split else np.zeros(40, dtype=int)
        names = [f"0.{home}" for home in range(cohorts)] if split else ["0"]
        made.append(
            Point(
                Progress(5 * number, 12.5 * number + seed, float(accuracies.mean()), 10**6 * number, 0, 90 * number),
                accuracy_spread(accuracies),
                {name: cohort_point(accuracies[homes == place], number) for place, name in enumerate(names)},
                agreement=float(split) if truth else None,
                epsilon=None,
            )
        )
    happened = (Happening("split", 5, 1.0, "0", tuple(f"0.{child}" for child in range(cohorts)), "made up"),)
    return Run("made-up", seed, tuple(made), happened, (*map(float, accuracies), math.nan), {"0": "0"}, {"late": 2})


def cohort_point(accuracies: np.ndarray, version: int) -> CohortPoint:
    return CohortPoint(len(accuracies), float(accuracies.mean()) if len(accuracies) else math.nan, version)


def finished(*runs: tuple[str, Run]) -> dict[Unit, Finished]:
    units = [(Unit(name, each.seed), each) for name, each in runs]
    return {unit: Finished(unit, each, 1.0, None) for unit, each in units}


def no_work(experiment, unit, on_point):
    """A unit that ends at once."""
    made = run(unit.seed, level=0.7 if unit.contender == "fedavg" else 0.8)
    for point in made.points:
        on_point(point)
    return made


def fails_for_fedprox(experiment, unit, on_point):
    if unit.contender == "fedprox":
        raise ZeroDivisionError("not for one's eyes")
    return no_work(experiment, unit, on_point)


def dies_for_fedprox(experiment, unit, on_point):
    if unit.contender == "fedprox":
        os.kill(os.getpid(), signal.SIGKILL)
    return no_work(experiment, unit, on_point)


def tells_its_threads(experiment, unit, on_point):
    import torch

    return Run(f"{torch.get_num_threads()} threads", unit.seed, run(unit.seed).points)
