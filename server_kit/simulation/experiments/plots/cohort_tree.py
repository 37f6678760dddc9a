"""How cohorts came and went: one line for each, as thick as it has devices, coloured by its accuracy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.simulation.experiments.plots.style import MUTED, Shown, figure
from server_kit.simulation.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_MOST_LEAVES = 40
_TALLEST_BAR_INCHES = 3.5
_THICKEST, _THINNEST = 9.0, 1.2


@dataclass(frozen=True)
class Life:
    """A cohort, in stretches from one evaluation to the next; a merge may bring it back after a gap."""

    cohort: str
    stretches: tuple[tuple[int, int], ...]
    accuracies: tuple[float, ...]
    devices: tuple[int, ...]

    @property
    def starts(self) -> list[int]:
        """The rounds at which it began, or began again."""
        ends = [None, *(end for _, end in self.stretches)]
        return [begin for end, (begin, _) in zip(ends, self.stretches, strict=False) if begin != end]


def draw(shown: Sequence[Shown]) -> Figure | None:
    """One panel for each contender that had more than one cohort, with its first seed; None where none had."""
    trees = [(each, lives(run)) for each in shown if (run := _first(each)) is not None]
    trees = [(each, tree) for each, tree in trees if len(tree) > 1]
    if not trees:
        return None
    import matplotlib
    from matplotlib.colors import Normalize

    heights = [0.75 + 0.3 * _leaves_shown(tree) for _, tree in trees]
    values = [100 * value for _, tree in trees for life in tree for value in life.accuracies if not math.isnan(value)]
    colours = Normalize(min(values, default=0), max(values, default=100))
    with figure(1.0 + sum(heights), "Cohorts over rounds") as drawn:
        panels = drawn.subplots(len(trees), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (each, tree) in zip(panels, trees, strict=True):
            _tree(axes, tree, colours)
            axes.set_title(f"{each.name}, seed {min(each.runs)}")
        panels[-1].set_xlabel("round (a line is as thick as its cohort has devices)")
        mapping = matplotlib.cm.ScalarMappable(colours, "cividis")
        share = min(1.0, _TALLEST_BAR_INCHES / sum(heights))
        drawn.colorbar(mapping, ax=list(panels), label="cohort's accuracy (%)", shrink=share, anchor=(0, 1), pad=0.02)
        return drawn


def lives(run: Run) -> list[Life]:
    """Every cohort of a run, parents before children."""
    found: dict[str, list[tuple[tuple[int, int], float, int]]] = {}
    before = 0
    for point in run.points:
        for cohort, at in point.cohorts.items():
            stretch = before, point.progress.round
            found.setdefault(cohort, []).append((stretch, at.accuracy, at.devices))
        before = point.progress.round
    return [Life(cohort, *zip(*told, strict=True)) for cohort, told in sorted(found.items(), key=_by_path)]


def _by_path(entry: tuple[str, object]) -> tuple[tuple[int, str], ...]:
    return tuple((int(part) if part.isdigit() else 0, part) for part in entry[0].split("."))


def _first(each: Shown) -> Run | None:
    return each.runs[min(each.runs)] if each.runs else None


def _leaves(tree: Sequence[Life]) -> list[Life]:
    """Those without a child in the picture."""
    return [life for life in tree if not any(other.cohort.startswith(f"{life.cohort}.") for other in tree)]


def _leaves_shown(tree: Sequence[Life]) -> int:
    return min(len(_leaves(tree)), _MOST_LEAVES)


def _tree(axes: Axes, tree: Sequence[Life], colours: Normalize) -> None:
    leaves = _leaves(tree)
    kept = sorted(leaves, key=lambda life: -life.devices[-1])[:_MOST_LEAVES]
    tree = [life for life in tree if life in kept or life not in leaves]
    places = _places(tree)
    fleet = max(_fleet(tree).values())
    for life in tree:
        axes.add_collection(_line(life, places[life.cohort], fleet, colours))
        for relative, at in _relatives(life, tree):
            axes.plot([at] * 2, [places[relative.cohort], places[life.cohort]], color=MUTED, linewidth=0.9, zorder=1)
    last = max(life.stretches[-1][1] for life in tree)
    _labels(axes, [life for life in tree if life.stretches[-1][1] == last], places)
    if len(leaves) > len(kept):
        text = f"{len(leaves) - len(kept)} smaller cohorts are not shown"
        axes.annotate(text, (0, 0), xycoords="axes fraction", color=MUTED)
    axes.set_xlim(0, last)
    axes.set_ylim(len(kept) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)


def _places(tree: Sequence[Life]) -> dict[str, float]:
    """Leaves one below the other, parents in the middle of their children."""
    places: dict[str, float] = {life.cohort: float(row) for row, life in enumerate(_leaves(tree))}
    for life in sorted(tree, key=lambda life: -life.cohort.count(".")):
        children = [places[other.cohort] for other in tree if _parent(other, tree) is life and other.cohort in places]
        if life.cohort not in places:
            places[life.cohort] = sum(children) / len(children) if children else 0.0
    return places


def _parent(life: Life, tree: Sequence[Life]) -> Life | None:
    """The nearest ancestor in the picture."""
    above = [other for other in tree if life.cohort.startswith(f"{other.cohort}.")]
    return max(above, key=lambda other: len(other.cohort), default=None)


def _relatives(life: Life, tree: Sequence[Life]) -> Iterator[tuple[Life, int]]:
    """Whom a cohort came from, each time it began: its parent, or after a merge its descendants."""
    first, *later = life.starts
    parent = _parent(life, tree)
    if parent is not None and any(end == first for _, end in parent.stretches):
        yield parent, first
    for start in later:
        for other in tree:
            if other.cohort.startswith(f"{life.cohort}.") and any(end == start for _, end in other.stretches):
                yield other, start


def _fleet(tree: Sequence[Life]) -> Counter[int]:
    """How many devices there are at each evaluation."""
    total: Counter[int] = Counter()
    for life in tree:
        for (_, end), devices in zip(life.stretches, life.devices, strict=True):
            total[end] += devices
    return total


def _line(life: Life, place: float, fleet: int, colours: Normalize) -> LineCollection:
    import matplotlib
    from matplotlib.collections import LineCollection

    segments = [[(begin, place), (end, place)] for begin, end in life.stretches]
    widths = [max(_THINNEST, _THICKEST * devices / max(1, fleet)) for devices in life.devices]
    paint = matplotlib.colormaps["cividis"]
    shades = ["#bbbbbb" if math.isnan(value) else paint(colours(100 * value)) for value in life.accuracies]
    return LineCollection(segments, linewidths=widths, colors=shades, capstyle="butt", zorder=2)


def _labels(axes: Axes, alive: Sequence[Life], places: dict[str, float]) -> None:
    for life in alive:
        accuracy = "" if math.isnan(life.accuracies[-1]) else f", {100 * life.accuracies[-1]:.0f} %"
        devices = f"{life.devices[-1]:,} device{'s' if life.devices[-1] != 1 else ''}"
        axes.annotate(
            f"{life.cohort}: {devices}{accuracy}",
            (1.005, places[life.cohort]),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
