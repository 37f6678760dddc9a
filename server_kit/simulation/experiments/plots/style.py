"""How the plots of an experiment look: one colour-blind-safe colour and dash for each contender, in every plot.

The colours are Okabe and Ito's without the yellow, which white paper swallows; after seven, dashes tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.errors import MissingExtra
from server_kit.simulation.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_MARKERS = "osD^vPX*"  # one more than colours, so that colour and mark do not come round together
INK, MUTED, OTHERS, GRID = "#1a1a1a", "#6b6b6b", "#c4c4c4", "#e6e6e6"
_MARKS = 8  # along a line
WIDTH_INCHES = 8.0
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "covey",  # equal plots are equal bytes
    "savefig.dpi": 160,
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True)
class Shown:
    """A contender and its runs by seed, as the plots want them."""

    name: str
    number: int
    runs: Mapping[int, Run]

    @property
    def colour(self) -> str:
        return _COLOURS[self.number % len(_COLOURS)]

    @property
    def line(self) -> dict[str, Any]:
        """How its line looks."""
        dash = _DASHES[self.number // len(_COLOURS) % len(_DASHES)]
        return {"color": self.colour, "linestyle": dash, "label": self.name}

    def marked_line(self, points: int) -> dict[str, Any]:
        """How its line of so many points looks; marks are set apart, so that equal lines can both be seen."""
        every = max(1, points // _MARKS)
        offset = every * (self.number % _MARKS) // _MARKS
        marks = {"marker": _MARKERS[self.number % len(_MARKERS)], "markersize": 4.5, "markeredgewidth": 0}
        return {**self.line, **marks, "markevery": (offset, every)}


def require_matplotlib() -> None:
    """Raise `MissingExtra` where no plot could be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "covey simulate draws its plots with matplotlib, which is not installed; run pip install 'covey[audit]'; "
            "nothing was run"
        ) from error


@contextmanager
def figure(height_inches: float, title: str) -> Iterator[Figure]:
    """An empty figure in this style, with its title."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        drawn = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        drawn.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        yield drawn


def legend(drawn: Figure, axes: Axes, entries: int) -> None:
    """Below everything: wherever it stood inside, some curve would run through it."""
    handles, labels = axes.get_legend_handles_labels()
    if entries > 1:
        drawn.legend(handles, labels, loc="outside lower center", ncols=min(entries, 4), handlelength=3.5)


def percent_axis(axes: Axes, values: Sequence[float] = ()) -> None:
    """Accuracies in %, from the whole range down to what there is, with room around it."""
    if values:
        low, high = min(values), max(values)
        room = max(2.0, 0.06 * (high - low))
        axes.set_ylim(max(0.0, low - room), min(100.0 + room / 3, high + room))
    axes.set_ylabel("accuracy (%)")
