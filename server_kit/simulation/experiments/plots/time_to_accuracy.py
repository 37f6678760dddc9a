"""How long a contender takes to an accuracy: for every accuracy as a curve, for each target seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from server_kit.simulation.experiments.plots.style import INK, MUTED, Shown, figure, legend
from server_kit.simulation.experiments.summary import estimate
from server_kit.simulation.experiments.units_of_measure import time_unit
from server_kit.simulation.metrics import time_to_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEPS = 101


def draw(shown: Sequence[Shown], targets: Sequence[float]) -> Figure | None:
    """The figure; None where nobody evaluated often enough to arrive anywhere."""
    curves = {each.name: _curve(each) for each in shown}
    if not any(len(places) > 1 for places, _ in curves.values()):
        return None
    row = 0.7 + 0.28 * len(shown)
    with figure(3.8 + row * len(targets), "Virtual time to accuracy") as drawn:
        panels = drawn.subplots(1 + len(targets), 1, squeeze=False, height_ratios=[3.2, *[row] * len(targets)])[:, 0]
        times = [seconds for _, found in curves.values() for seconds in found]
        times += [seconds for target in targets for each in shown for seconds in _times(each, target) if seconds]
        size, unit = time_unit(max(times))
        _curves(panels[0], shown, curves, targets, size=size, unit=unit)
        for axes, target in zip(panels[1:], targets, strict=True):
            _seed_by_seed(axes, shown, target, size)
            # Room on the right for those that never arrive.
            axes.set_xlim(0, 1.22 * max(times) / size)
        if targets:
            panels[-1].set_xlabel(f"virtual time ({unit})")
        legend(drawn, panels[0], len(shown))
        return drawn


def _curve(each: Shown) -> tuple[list[float], list[float]]:
    """Accuracies in % and the mean time to them, as far as every seed came."""
    places, seconds = [], []
    for target in np.linspace(0, 1, _STEPS):
        times = _times(each, float(target))
        mean = estimate(times)
        if mean is None or None in times:
            break
        places.append(100 * float(target))
        seconds.append(mean.mean)
    return places, seconds


def _times(each: Shown, target: float) -> list[float | None]:
    return [time_to_accuracy(run.curve, target) for run in each.runs.values()]


def _curves(
    axes: Axes,
    shown: Sequence[Shown],
    curves: dict[str, tuple[list[float], list[float]]],
    targets: Sequence[float],
    *,
    size: float,
    unit: str,
) -> None:
    begin = 100.0
    for each in shown:
        places, seconds = curves[each.name]
        axes.plot(places, [value / size for value in seconds], **each.marked_line(len(places)))
        # The first stretch is flat: whatever is reached at once.
        later = [place for place, value in zip(places, seconds, strict=True) if value > seconds[0]]
        begin = min([begin, *later[:1]])
    for target in targets:
        axes.axvline(100 * target, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=0)
    axes.set_xlim(left=max(0.0, begin - 2))
    axes.set_ylim(bottom=0)
    axes.set_title("to each accuracy, as far as every seed got; lower and longer is better")
    axes.set_xlabel("accuracy (%), mean of 5 evaluations in a row")
    axes.set_ylabel(f"virtual time ({unit})")


def _seed_by_seed(axes: Axes, shown: Sequence[Shown], target: float, size: float) -> None:
    for row, each in enumerate(shown):
        times = _times(each, target)
        there = [seconds / size for seconds in times if seconds is not None]
        axes.scatter(there, [row] * len(there), s=26, color=each.colour, alpha=0.55, linewidth=0, clip_on=False)
        if there:
            axes.plot([sum(there) / len(there)] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=1.6)
        if len(there) < len(times):
            text = f"{len(times) - len(there)} of {len(times)} never"
            axes.annotate(text, (0.995, row), xycoords=("axes fraction", "data"), ha="right", va="center", color=MUTED)
    axes.set_yticks(range(len(shown)), [each.name for each in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_title(f"to {100 * target:g} %: each seed, and their mean")
