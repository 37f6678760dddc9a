"""The demo's results as one HTML page that needs nothing else, in the style of the privacy report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.reporting.page_parts import (
    Cell,
    figure,
    long_table,
    paragraph,
    section,
    table,
    text,
    tiles,
    whole_page,
)
from server_kit.demo import figures
from server_kit.demo.figures import curves
from server_kit.demo.terms import DELTA, EPSILON

if TYPE_CHECKING:
    from server_kit.demo.summary import Summary

ONE_MODEL = (
    "The one global model is FedAvg over all devices: the same records, start, mechanism, rounds and ε, and the "
    "learning rate that suits it best, computed without the wire. It asks its devices nothing, so all of their ε goes "
    "into training. The data were made so that cohorts exist and one linear model cannot serve all: this shows how "
    "Covey works, and is no benchmark."
)
MEASURED = (
    "The demo made the data and kept test images aside that no device trained on. It measured all accuracies itself, "
    "outside of the federation: the server knows none of them."
)
_SHOWN_ROWS = 96


def page_of(summary: Summary) -> str:
    """The whole page."""
    terms = summary.results.terms
    words = f"{terms.devices} device processes, {terms.rounds} rounds, ε={EPSILON} at δ={DELTA:g} for each record"
    parts = [
        f"<header><h1>Covey demo</h1>{paragraph(words, 'meta')}</header>",
        _at_a_glance(summary),
        section("Was it worth it?", _by_kind(summary), paragraph(ONE_MODEL, "note"), paragraph(MEASURED, "note")),
        section("What happened", f'<div class="figures">{"".join(_figures(summary))}</div>'),
        section("Who is where", _cohorts(summary), _devices(summary)),
        f"<footer>{text('Made by covey demo.')}</footer>",
    ]
    return whole_page("Covey demo", "\n".join(parts))


def _at_a_glance(summary: Summary) -> str:
    everyone = summary.by_kind()[-1]
    pairs = [
        ("With the cohort's model", f"{everyone.cohort_model:.1%} right"),
        ("With one global model", f"{everyone.one_model:.1%} right"),
        ("Cohorts found", str(len(summary.results.last.leaves))),
        ("Match with the true kinds (ARI)", f"{summary.agreement:.2f}"),
        ("Most ε spent", f"{summary.epsilon:.2f} of {EPSILON}"),
    ]
    return section("At a glance", tiles(pairs))


def _by_kind(summary: Summary) -> str:
    rows: list[list[Cell]] = [
        [
            line.kind,
            str(line.devices),
            line.cohorts,
            f"{line.cohort_model:.1%}",
            f"{line.one_model:.1%}",
            f"{100 * line.gain:+.1f}",
        ]
        for line in summary.by_kind()
    ]
    heads = ["Kind of data", "Devices", "Found in cohort", "Cohort's model", "One model", "Gain (points)"]
    return table("Right answers on test images, mean over devices", heads, rows, ["", "n", "", "n", "n", "n"])


def _figures(summary: Summary) -> list[str]:
    results = summary.results
    happened = [
        [change.kind, change.cohort, str(change.facts.get("why", ""))] for change in results.progress.changes
    ] or [["none", "", "one cohort from start to end"]]
    return [
        figure("Accuracy over rounds", figures.accuracy(results), "On the cohort's own devices.", _numbers(summary)),
        figure(
            "Cohort tree",
            figures.tree(results),
            "Each cohort with its number of devices.",
            table("Changes", ["What", "Of cohort", "Why"], happened, ["", "", ""]),
        ),
        figure(
            "ε spent",
            figures.privacy(results),
            "The most that any device has spent, by the receipts they signed.",
            table(
                "By round",
                ["Round", "ε"],
                [[str(number), f"{epsilon:.3f}"] for number, epsilon in sorted(dict(results.progress.spent).items())],
                ["", "n"],
            ),
        ),
    ]


def _numbers(summary: Summary) -> str:
    rows = []
    for leaf in summary.results.last.leaves:
        own, one = curves(summary.results, leaf)
        compared = dict(one)
        rows += [
            [leaf, str(number), f"{value:.1f}", f"{compared[number]:.1f}"]
            for number, value in own
            if number in compared
        ]
    return table("Right answers in per cent", ["Cohort", "Round", "Its model", "One model"], rows, ["", "n", "n", "n"])


def _cohorts(summary: Summary) -> str:
    leaves = summary.results.last.leaves
    lines = summary.by_device()
    kinds = dict.fromkeys(line.kind for line in lines)
    rows = [
        [kind, *(str(sum(line.kind == kind and line.cohort == leaf for line in lines)) for leaf in leaves)]
        for kind in kinds
    ]
    heads = ["Kind of data", *(f"Cohort {leaf}" for leaf in leaves)]
    return table("Devices of each kind in each cohort", heads, rows, ["", *["n"] * len(leaves)])


def _devices(summary: Summary) -> str:
    rows = [
        [line.device, line.kind, line.cohort, f"{line.cohort_model:.0%}", f"{line.one_model:.0%}"]
        for line in summary.by_device()
    ]
    heads = ["Device", "Kind of data", "Cohort", "Cohort's model", "One model"]
    return long_table("Every device", heads, rows, ["", "", "", "n", "n"], _SHOWN_ROWS)
