"""The figures of a fleet's report. Each stays legible from one device to thousands, because it shows distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from privacy.errors import MissingExtra
from privacy.reporting.amounts import counted, moment, up
from privacy.reporting.fleet_figures import DeviceFigures, Moment
from privacy.reporting.svg import ACCENT, GRID, INK, MUTED, WARN, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 10
_WIDTH_INCHES = 5.6
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and scaled
    "svg.hashsalt": "covey",  # equal figures are equal bytes
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
}


def require_matplotlib() -> None:
    """Raise `MissingExtra` where no figure could be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "the report's figures need matplotlib, which is not installed; run pip install 'covey[audit]', "
            "or leave out --out for the summary alone; nothing was written"
        ) from error


def remaining(devices: Sequence[DeviceFigures], names: Sequence[str]) -> str:
    """How much of each share is left, as one histogram a share."""
    from matplotlib.ticker import MaxNLocator

    with styled_figure(0.5 + min(2.4, 5.9 / len(names)) * len(names)) as figure:
        panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        texts = []
        for axes, name in zip(panels, names, strict=True):
            counts = left_counts(devices, name)
            bars = axes.bar([10 * index + 5 for index in range(BINS)], counts, width=9, color=ACCENT, linewidth=0)
            bars[0].set_color(WARN)
            axes.set_title(share_words(name), loc="left", fontsize=11)
            axes.set_ylabel("devices")
            axes.set_ylim(0, max(counts) * 1.1)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
            axes.grid(axis="y")
            texts.append(f"{share_words(name)}: {counted(counts[0], 'device')} of {sum(counts):,} under 10 % left")
        panels[-1].set_xlabel("left of the share (%)")
        panels[-1].set_xticks(range(0, 101, 20))
        return inline(figure, "left", "Remaining budget", "; ".join(texts))


def timeline(moments: Sequence[Moment], budget: float | None) -> str:
    """ε over time: the median, the middle eight tenths, and the most."""
    from matplotlib import dates

    with styled_figure(3.1) as figure:
        axes = figure.add_subplot()
        times = [datetime.fromtimestamp(entry.at, UTC) for entry in moments]
        place = dates.date2num(times)  # type: ignore[no-untyped-call]
        axes.fill_between(
            place,
            [entry.tenth for entry in moments],
            [entry.ninetieth for entry in moments],
            step="post",
            color=ACCENT,
            alpha=0.25,
            linewidth=0,
            label="middle 80 %",
        )
        axes.step(place, [entry.median for entry in moments], where="post", color=ACCENT, linewidth=2, label="median")
        axes.step(place, [entry.high for entry in moments], where="post", color=INK, linewidth=1, label="most")
        _budget_line(axes, budget)
        locator = dates.AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        axes.set_ylabel("ε so far")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        # Above the axes: wherever it stood inside, some fleet's curve would run through it.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, ncols=4, fontsize=10, columnspacing=1.2)
        last = moments[-1]
        text = (
            f"by {moment(last.at)} UTC the median device has revealed ε={up(last.median)}, the most ε={up(last.high)}"
        )
        return inline(figure, "time", "ε over time", text)


def ranked(devices: Sequence[DeviceFigures], budget: float | None) -> str:
    """Every device as one dot, those that revealed most on the left."""
    from matplotlib.ticker import MaxNLocator

    with styled_figure(3.1) as figure:
        axes = figure.add_subplot()
        epsilons = sorted((device.epsilon for device in devices), reverse=True)
        size = 36 if len(epsilons) <= 50 else 9 if len(epsilons) <= 500 else 3
        axes.scatter(range(1, len(epsilons) + 1), epsilons, s=size, color=ACCENT, linewidth=0, clip_on=False)
        _budget_line(axes, budget)
        axes.set_xlabel("devices, by what they have revealed")
        axes.set_ylabel("ε so far")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, len(epsilons) + 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        text = f"{counted(len(epsilons), 'device')}, from ε={up(epsilons[0])} down to ε={up(epsilons[-1])}"
        return inline(figure, "rank", "ε by device", text)


def left_counts(devices: Sequence[DeviceFigures], name: str) -> list[int]:
    """How many devices have 0-10 %, 10-20 %, … of a share left; 100 % falls into the last."""
    counts = [0] * BINS
    for device in devices:
        for share in device.shares:
            if share.name == name:
                counts[min(BINS - 1, int(BINS * (1 - share.used)))] += 1
    return counts


def share_words(name: str) -> str:
    """What a share is called in a report."""
    return {
        "pure": "Histograms, choices, scalars (pure ε)",
        "gaussian": "Noised model updates (Gaussian)",
        "renyi": "Training on single records (Rényi)",
    }[name]


def _budget_line(axes: Axes, budget: float | None) -> None:
    if budget is not None:
        axes.axhline(budget, color=WARN, linewidth=1.2, linestyle=(0, (5, 3)), label=f"budget ε={budget:g}")


@contextmanager
def styled_figure(height_inches: float) -> Iterator[Figure]:
    """A figure in the report's style, as wide as its column."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        yield Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
