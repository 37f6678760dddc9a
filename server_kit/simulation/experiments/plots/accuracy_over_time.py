"""Accuracy over virtual time: all contenders together, then each with the spread over its cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from server_kit.simulation.experiments.plots.curves import best_cohort, mean_curve, worst_cohort
from server_kit.simulation.experiments.plots.style import MUTED, OTHERS, Shown, figure, legend, percent_axis
from server_kit.simulation.experiments.units_of_measure import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from server_kit.simulation.records import Point

_ACROSS = 3


def draw(shown: Sequence[Shown]) -> Figure:
    """The figure."""
    from matplotlib.ticker import MaxNLocator

    rows = -(-len(shown) // _ACROSS)
    with figure(3.9 + 2.1 * rows, "Accuracy over virtual time") as drawn:
        grid = drawn.add_gridspec(1 + rows, _ACROSS, height_ratios=[3.4, *[2.0] * rows])
        size, unit = time_unit(
            max((run.points[-1].progress.seconds for each in shown for run in each.runs.values()), default=0)
        )
        top = drawn.add_subplot(grid[0, :])
        values = [value for each in shown for value in _overview(top, each, size)]
        seeds = max(len(each.runs) for each in shown)
        top.set_title(f"mean over devices{f' and {seeds} seeds; shaded: ± standard error' if seeds > 1 else ''}")
        top.set_xlim(left=0)
        top.set_xlabel(f"virtual time ({unit})")
        percent_axis(top, values)
        first = None
        for number, each in enumerate(shown):
            axes = drawn.add_subplot(grid[1 + number // _ACROSS, number % _ACROSS], sharey=first)
            first = first or axes
            _with_cohorts(axes, each, shown, size)
            # The range of the large panel, but with fewer ticks than shared axes would have.
            axes.set_xlim(top.get_xlim())
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_xlabel(f"virtual time ({unit})")
            axes.set_ylabel("accuracy (%)" if number % _ACROSS == 0 else "")
        legend(drawn, top, len(shown))
        return drawn


def _seconds(point: Point) -> float:
    return point.progress.seconds


def _accuracy(point: Point) -> float:
    return point.progress.accuracy


def _overview(axes: Axes, each: Shown, size: float) -> list[float]:
    """Draws one line; the values drawn."""
    curve = mean_curve(each.runs.values(), _seconds, _accuracy)
    if curve is None:
        return []
    mean, error = 100 * curve.mean, 100 * curve.error
    axes.plot(curve.x / size, mean, **each.marked_line(len(mean)))
    axes.fill_between(curve.x / size, mean - error, mean + error, color=each.colour, alpha=0.18, linewidth=0)
    return [float(mean.min()), float(mean.max())]


def _with_cohorts(axes: Axes, each: Shown, others: Sequence[Shown], size: float) -> None:
    for other in others:
        context = mean_curve(other.runs.values(), _seconds, _accuracy)
        if context is not None and other is not each:
            axes.plot(context.x / size, 100 * context.mean, color=OTHERS, linewidth=1, zorder=1)
    low = mean_curve(each.runs.values(), _seconds, worst_cohort)
    high = mean_curve(each.runs.values(), _seconds, best_cohort)
    if low is not None and high is not None and len(low.x) == len(high.x):
        axes.fill_between(low.x / size, 100 * low.mean, 100 * high.mean, color=each.colour, alpha=0.25, linewidth=0)
    mean = mean_curve(each.runs.values(), _seconds, _accuracy)
    if mean is not None:
        axes.plot(mean.x / size, 100 * mean.mean, color=each.colour, linewidth=1.6)
    cohorts = max((len(point.cohorts) for run in each.runs.values() for point in run.points), default=0)
    axes.set_title(each.name, fontsize=10)
    note = "one cohort" if cohorts <= 1 else "shaded: worst to best cohort"
    axes.text(0.98, 0.04, note, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=MUTED)
