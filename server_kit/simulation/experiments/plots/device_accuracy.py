"""How accuracy is spread over devices at the end of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from server_kit.simulation.experiments.plots.style import MUTED, Shown, figure, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from server_kit.simulation.ragged import FloatArray


def draw(shown: Sequence[Shown]) -> Figure | None:
    """The share of devices up to each accuracy, all seeds together; None where no device was tested."""
    accuracies = {each.name: _tested(each) for each in shown}
    if not any(len(values) for values in accuracies.values()):
        return None
    with figure(4.4, "Accuracy of single devices at the end") as drawn:
        axes = drawn.add_subplot()
        for each in shown:
            values = accuracies[each.name]
            if len(values):
                axes.ecdf(100 * values, **each.line)
        axes.axhline(0.1, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=0)
        axes.annotate(
            "worst tenth", (0.005, 0.1), xycoords=("axes fraction", "data"), va="bottom", fontsize=8, color=MUTED
        )
        axes.set_title("a curve further to the right is better; a steep one treats devices alike")
        axes.set_xlabel("accuracy of a device with the model of its cohort (%)")
        axes.set_ylabel("share of devices up to it")
        axes.set_ylim(0, 1)
        axes.set_xlim(right=100.5)
        legend(drawn, axes, len(shown))
        return drawn


def _tested(each: Shown) -> FloatArray:
    values = np.array([value for run in each.runs.values() for value in run.device_accuracies], dtype=np.float64)
    return values[~np.isnan(values)]
