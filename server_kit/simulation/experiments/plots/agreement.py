"""How well the clusters that were found agree with the true groups, over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from server_kit.simulation.experiments.plots.curves import mean_curve
from server_kit.simulation.experiments.plots.style import MUTED, Shown, figure, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(shown: Sequence[Shown]) -> Figure | None:
    """The figure; None where the truth is not known, or there is one group only and nothing to find."""
    curves = {
        each.name: mean_curve(each.runs.values(), lambda point: point.progress.round, lambda point: point.agreement)
        for each in shown
    }
    if not any(curve is not None for curve in curves.values()):
        return None
    with figure(4.2, "Agreement of clusters with the true groups") as drawn:
        axes = drawn.add_subplot()
        for each in shown:
            curve = curves[each.name]
            if curve is not None:
                axes.plot(curve.x, curve.mean, **each.marked_line(len(curve.x)))
                low, high = curve.mean - curve.error, curve.mean + curve.error
                axes.fill_between(curve.x, low, high, color=each.colour, alpha=0.18, linewidth=0)
        for level, text in ((1.0, "the true groups"), (0.0, "chance")):
            axes.axhline(level, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=0)
            axes.annotate(
                text,
                (0.995, level),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
                color=MUTED,
            )
        axes.set_ylim(top=1.08)
        axes.set_xlim(left=0)
        axes.set_xlabel("round")
        axes.set_ylabel("adjusted Rand index")
        seeds = max(len(each.runs) for each in shown)
        axes.set_title(f"mean over {seeds} seeds; shaded: ± standard error" if seeds > 1 else "one seed")
        legend(drawn, axes, len(shown))
        return drawn
