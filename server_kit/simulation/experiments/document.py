"""The results of an experiment as one JSON document, with all that is needed to judge and to repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server_kit.simulation.experiments.environment import commit, machine, versions
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.results_folder import Finished
from server_kit.simulation.experiments.run_json import to_json
from server_kit.simulation.experiments.summary import ContenderSummary
from server_kit.simulation.experiments.workers import Failure

FORMAT = "covey-simulate-1"


def summary_document(
    experiment: Experiment,
    summaries: Sequence[ContenderSummary],
    alike: Sequence[tuple[str, str]],
    failures: Sequence[Failure],
) -> dict[str, Any]:
    """What `covey simulate --json` prints."""
    return {
        "format": FORMAT,
        "experiment": experiment.file.name,
        "settings": to_json(experiment.tables),
        "seeds": [unit.seed for unit in experiment.units if unit.contender == experiment.contenders[0].name],
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "contenders": to_json(summaries),
        "identical": [list(pair) for pair in alike],
        "failed": [
            {"contender": each.unit.contender, "seed": each.unit.seed, "sentence": each.sentence} for each in failures
        ],
    }


def whole_document(summary: dict[str, Any], finished: Mapping[Unit, Finished]) -> dict[str, Any]:
    """The same with every run: each evaluation, each change of structure, each device's accuracy at the end."""
    units = [
        {
            "contender": unit.contender,
            "seed": unit.seed,
            "commit": each.commit,
            "wall_seconds": each.wall_seconds,
            "run": to_json(each.run),
        }
        for unit, each in finished.items()
    ]
    return {**summary, "units": units}
