"""An experiment from its file to its results: what is finished is kept, the rest is run, all of it is told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server_kit.errors import ServerError
from server_kit.simulation.experiments.document import summary_document, whole_document
from server_kit.simulation.experiments.environment import commit, cores
from server_kit.simulation.experiments.experiment import Experiment
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.plots import require_matplotlib, write_plots
from server_kit.simulation.experiments.progress import watching
from server_kit.simulation.experiments.results_folder import ResultsFolder, write_whole
from server_kit.simulation.experiments.summary import identical, summarise
from server_kit.simulation.experiments.table import results_text
from server_kit.simulation.experiments.workers import (
    Failure,
    Work,
    make_importable,
    run_units,
    simulate_unit,
)

if TYPE_CHECKING:
    from server_kit.simulation.records import Point


class NothingFinished(ServerError):
    """No unit of an experiment came to its end."""


@dataclass(frozen=True)
class Results:
    """What an experiment came to."""

    document: dict[str, Any]
    text: str
    failures: tuple[Failure, ...]
    folder: Path


def run_experiment(
    file: ExperimentFile,
    out: Path,
    *,
    jobs: int | None = None,
    fresh: bool = False,
    quiet: bool = False,
    work: Work = simulate_unit,
) -> Results:
    """Run what is not finished yet, and write the table, the JSON and the plots of everything."""
    require_matplotlib()
    make_importable(file.folder)
    experiment, folder = file.read(), ResultsFolder(out)
    jobs = jobs or cores()
    with folder.held():
        finished = {} if fresh else folder.read(experiment)
        left = [unit for unit in experiment.units if unit not in finished]
        say = _speaker(quiet)
        if finished:
            say(f"{len(finished)} of {len(experiment.units)} units were finished before and are kept")
        failures: list[Failure] = []
        if left:
            experiment.check_data()
            if fresh:
                # Only now: a file that cannot run costs nobody their results.
                folder.clear()
            jobs = min(jobs, len(left))
            with watching(_share_done(experiment), len(finished), len(experiment.units), quiet=quiet) as watcher:
                failures = run_units(file, left, folder, watcher, jobs=jobs, threads=max(1, cores() // jobs), work=work)
        return _results(experiment, folder, failures, say)


def _results(
    experiment: Experiment, folder: ResultsFolder, failures: list[Failure], say: Callable[[str], None]
) -> Results:
    finished = folder.read(experiment)
    if not finished:
        raise NothingFinished(f"{failures[0].unit}: {failures[0].sentence}; no unit was finished")
    if len({each.commit for each in finished.values()} | {commit()}) > 1:
        say("units were run by different commits of covey; --fresh runs all of them with this one")
    summaries = summarise(experiment, finished)
    evaluations = min(len(each.run.points) for each in finished.values())
    alike = identical(finished)
    text = results_text(summaries, evaluations, alike)
    document = summary_document(experiment, summaries, alike, failures)
    write_whole(folder.path / "experiment.toml", experiment.file.text)
    write_whole(folder.path / "results.json", json.dumps(whole_document(document, finished), allow_nan=False, indent=1))
    write_whole(folder.path / "table.txt", f"{text}\n")
    write_plots(experiment, finished, folder.path / "plots")
    return Results(document, text, tuple(failures), folder.path)


def _share_done(experiment: Experiment) -> Callable[[Point], float]:
    rounds, seconds = experiment.settings.rounds, experiment.settings.max_seconds

    def share(point: Point) -> float:
        by_time = point.progress.seconds / seconds if math.isfinite(seconds) else 0.0
        return min(1.0, max(point.progress.round / rounds, by_time))

    return share


def _speaker(quiet: bool) -> Callable[[str], None]:
    return lambda sentence: None if quiet else click.echo(sentence, err=True)
