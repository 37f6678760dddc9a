"""The plots of the demo's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from privacy.reporting.plots import styled_figure
from privacy.reporting.svg import ACCENT, INK, MUTED, WARN, inline
from server_kit.cohort_tree import depth_of, lineage, parent_of
from server_kit.demo.progress import mean_for
from server_kit.demo.terms import EPSILON

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from server_kit.demo.progress import Point
    from server_kit.demo.running import Results

Curve = list[tuple[int, float]]


def accuracy(results: Results) -> str:
    """Each cohort's models on its own devices, and the one model on the same, round by round."""
    leaves = results.last.leaves
    with styled_figure(0.6 + 1.9 * len(leaves)) as figure:
        panels = figure.subplots(len(leaves), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        texts = []
        for axes, leaf in zip(panels, leaves, strict=True):
            own, one = curves(results, leaf)
            axes.plot(*zip(*own, strict=True), color=ACCENT, linewidth=2, label="the cohort's model")
            axes.plot(*zip(*one, strict=True), color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="one model")
            axes.set_title(f"cohort {leaf}", loc="left", fontsize=11)
            axes.set_ylabel("right (%)")
            axes.set_ylim(0, 100)
            axes.grid(axis="y")
            texts.append(f"cohort {leaf}: {own[-1][1]:.0f} % with its own model, {one[-1][1]:.0f} % with one model")
        panels[0].legend(loc="lower right", frameon=False, fontsize=10)
        panels[-1].set_xlabel("round")
        return inline(figure, "accuracy", "Accuracy over rounds", "; ".join(texts))


def curves(results: Results, leaf: str) -> tuple[Curve, Curve]:
    """In per cent: a leaf's line of models back to the root, and the one model, on the devices of the leaf."""
    members = [device for device, home in results.last.homes.items() if home == leaf]
    own = [(point.round, 100 * mean_for(point.accuracies, members)) for point in line_of(results.progress.points, leaf)]
    one = [(number, 100 * mean_for(each, members)) for number, each in enumerate(results.one_model.rounds)]
    return own, one


def line_of(points: Sequence[Point], leaf: str) -> list[Point]:
    """The models of a cohort and, before its birth, of those it came from; one for each round."""
    found: dict[int, Point] = {}
    for ancestor in sorted(lineage(leaf), key=depth_of):
        found |= {point.round: point for point in points if point.cohort == ancestor}
    return [found[number] for number in sorted(found)]


def tree(results: Results) -> str:
    """Cohorts from their first round to their last, as thick as they have devices."""
    lives = _lives(results)
    most = max(1, *(size for _, _, size in lives.values()))
    places = {cohort: -number for number, cohort in enumerate(lives)}
    with styled_figure(0.9 + 0.45 * len(lives)) as figure:
        axes = figure.add_subplot()
        for cohort, (first, last, size) in lives.items():
            axes.hlines(places[cohort], first, max(last, first + 0.3), color=ACCENT, linewidth=2 + 8 * size / most)
            axes.annotate(
                f"{cohort}  ({size})", (last, places[cohort]), xytext=(8, 0), textcoords="offset points", va="center"
            )
            _branch(axes, cohort, first, places)
        axes.set_xlabel("round")
        axes.set_xlim(-0.3, 1.15 * results.terms.rounds)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.margins(y=0.2)
        text = "; ".join(f"{cohort}: {size} devices, rounds {a} to {b}" for cohort, (a, b, size) in lives.items())
        return inline(figure, "tree", "Cohort tree", text)


def privacy(results: Results) -> str:
    """The most ε that any device had spent, round by round, and the budget."""
    from matplotlib.ticker import MaxNLocator

    spent = sorted(dict(results.progress.spent).items())
    with styled_figure(2.7) as figure:
        axes = figure.add_subplot()
        axes.plot(*zip(*spent, strict=True), color=ACCENT, linewidth=2, marker="o", markersize=3)
        axes.axhline(EPSILON, color=WARN, linewidth=1.2, linestyle=(0, (5, 3)), label=f"budget ε={EPSILON}")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("ε spent")
        axes.set_ylim(0, 1.15 * EPSILON)
        axes.grid(axis="y")
        axes.legend(loc="lower right", frameon=False, fontsize=10)
        return inline(figure, "privacy", "ε spent", f"ε={spent[-1][1]:.2f} of {EPSILON} at the end")


def _lives(results: Results) -> dict[str, tuple[int, int, int]]:
    """First round, last round and most devices of each cohort, in the order of the tree."""
    found: dict[str, tuple[int, int, int]] = {}
    for point in results.progress.points:
        first, last, size = found.get(point.cohort, (point.round, point.round, 0))
        found[point.cohort] = (min(first, point.round), max(last, point.round), max(size, len(point.members)))
    return dict(sorted(found.items(), key=lambda entry: [int(part) for part in entry[0].split(".") if part.isdigit()]))


def _branch(axes: Axes, cohort: str, first: int, places: dict[str, int]) -> None:
    parent = parent_of(cohort)
    if parent in places:
        axes.vlines(first, places[cohort], places[parent], color=MUTED, linewidth=1)
