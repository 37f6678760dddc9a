"""Draws every plot of an experiment and writes it in both formats."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.plots import (
    accuracy_over_time,
    agreement,
    cohort_tree,
    device_accuracy,
    time_to_accuracy,
)
from server_kit.simulation.experiments.plots.style import SETTINGS, Shown
from server_kit.simulation.experiments.results_folder import Finished, write_whole

FORMATS = ("png", "svg")


def write_plots(experiment: Experiment, finished: Mapping[Unit, Finished], folder: Path) -> list[Path]:
    """The files that were written; those of an earlier, shorter run are replaced or removed."""
    import matplotlib

    shown = _shown(experiment, finished)
    drawn = {
        "accuracy_over_time": accuracy_over_time.draw(shown),
        "time_to_accuracy": time_to_accuracy.draw(shown, experiment.repeats.targets),
        "device_accuracy": device_accuracy.draw(shown),
        "cohort_tree": cohort_tree.draw(shown),
        "agreement": agreement.draw(shown),
    }
    written = []
    for name, figure in drawn.items():
        for kind in FORMATS:
            path = folder / f"{name}.{kind}"
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            content = io.BytesIO()
            with matplotlib.rc_context(SETTINGS):
                figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
            write_whole(path, content.getvalue())
            written.append(path)
    return written


def _shown(experiment: Experiment, finished: Mapping[Unit, Finished]) -> list[Shown]:
    """Contenders that have something to show, each with the colour of its place in the file."""
    found = []
    for number, contender in enumerate(experiment.contenders):
        runs = {unit.seed: each.run for unit, each in finished.items() if unit.contender == contender.name}
        runs = {seed: run for seed, run in sorted(runs.items()) if run.points}
        if runs:
            found.append(Shown(contender.name, number, runs))
    return found
