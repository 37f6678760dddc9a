"""The results of an experiment as plain text for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from privacy.reporting.amounts import counted, up
from privacy.reporting.tables import paragraph, table
from server_kit.simulation.experiments.summary import LAST, ContenderSummary, Difference, Estimate
from server_kit.simulation.experiments.units_of_measure import Unit, UnitFor, count_unit, in_unit, size_unit, time_unit

NOTHING = "–"
Summaries = Sequence[ContenderSummary]


def results_text(summaries: Summaries, evaluations: int, alike: Sequence[tuple[str, str]] = ()) -> str:
    """All tables, each with a line that says what it shows, and what a reader should beware of."""
    parts = [_accuracy(summaries, evaluations), _against_first(summaries)]
    parts += [_target(summaries, number) for number in range(len(summaries[0].targets))]
    parts.append(_structure(summaries))
    parts += [
        paragraph(f"Beware: {first} and {other} gave the same runs, so what sets them apart had no effect here.")
        for first, other in alike
    ]
    return "\n\n".join(part for part in parts if part)


def _accuracy(summaries: Summaries, evaluations: int) -> str:
    seeds = max(len(each.seeds) for each in summaries)
    error = " ± standard error" if seeds > 1 else ""
    head = (
        f"Accuracy over devices in %, mean{error} over {counted(seeds, 'seed')}. Final and the tenths: mean of the "
        f"last {min(LAST, evaluations)} of {counted(evaluations, 'evaluation')}; best and median: of all of them. "
        "Variance: over devices, in squared points."
    )
    rows = [
        [
            each.name,
            _percent(each.final),
            _percent(each.best, with_error=False),
            _percent(each.median, with_error=False),
            _percent(each.worst_tenth),
            _percent(each.best_tenth, with_error=False),
            _number(each.variance_points, "{:.0f}"),
        ]
        for each in summaries
    ]
    headers = ["", "final", "best", "median", "worst 10 %", "best 10 %", "variance"]
    return f"{paragraph(head)}\n\n{table(headers, rows, 'lrrrrrr')}"


def _against_first(summaries: Summaries) -> str:
    first, *others = summaries
    rows = [[each.name, *_difference(each.against_first)] for each in others if each.against_first]
    if not rows:
        return ""
    head = f"Final accuracy minus that of {first.name}, in points, on the same seeds."
    headers = ["", "difference", "95 % interval", "better on"]
    return f"{paragraph(head)}\n\n{table(headers, rows, 'lrrr')}"


def _difference(found: Difference | None) -> list[str]:
    if found is None:
        return [NOTHING] * 3
    interval = "needs 2 seeds"
    if found.low is not None and found.high is not None:
        interval = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    return [f"{100 * found.mean:+.1f}", interval, f"{found.better} of {counted(found.pairs, 'seed')}"]


def _target(summaries: Summaries, number: int) -> str:
    target = summaries[0].targets[number].target
    head = f"To {100 * target:g} % (mean of 5 evaluations in a row), over the seeds that got there."
    found = [each.targets[number] for each in summaries]
    columns = [
        [f"{each.reached} of {each.seeds}" for each in found],
        _measured([each.virtual_seconds for each in found], time_unit),
        _measured([each.traffic_bytes for each in found], size_unit),
        _measured([each.client_steps for each in found], count_unit),
    ]
    rows = [[each.name, *cells] for each, *cells in zip(summaries, *columns, strict=True)]
    headers = ["", "got there", "virtual time", "traffic", "client steps"]
    return f"{paragraph(head)}\n\n{table(headers, rows, 'lrrrr')}"


def _structure(summaries: Summaries) -> str:
    columns: list[tuple[str, list[str]]] = [
        ("cohorts", [_number(each.cohorts, "{:.1f}") for each in summaries]),
        ("agreement (ARI)", [_number(each.agreement, "{:.2f}") for each in summaries]),
        ("ε spent", [NOTHING if each.epsilon is None else up(each.epsilon) for each in summaries]),
        ("virtual time", _measured([each.virtual_seconds for each in summaries], time_unit)),
        ("unused answers", [f"{each.unused_answers:,}" if each.unused_answers else NOTHING for each in summaries]),
    ]
    shown = [column for column in columns if any(cell != NOTHING for cell in column[1])]
    headers = ["", *(header for header, _ in shown)]
    rows = [[each.name, *(cells[row] for _, cells in shown)] for row, each in enumerate(summaries)]
    return f"At the end of the runs.\n\n{table(headers, rows, 'l' + 'r' * len(shown))}"


def _percent(found: Estimate | None, *, with_error: bool = True) -> str:
    if found is None:
        return NOTHING
    error = f" ± {100 * found.standard_error:.1f}" if with_error and found.standard_error is not None else ""
    return f"{100 * found.mean:.1f}{error}"


def _number(found: Estimate | None, shape: str) -> str:
    if found is None:
        return NOTHING
    error = f" ± {shape.format(found.standard_error)}" if found.standard_error else ""
    return f"{shape.format(found.mean)}{error}"


def _measured(column: Sequence[Estimate | None], unit_for: UnitFor) -> list[str]:
    """Amounts in one unit, so that a glance compares them."""
    unit = unit_for(max((each.mean for each in column if each), default=0.0))
    return [_amount(each, unit) for each in column]


def _amount(found: Estimate | None, unit: Unit) -> str:
    if found is None:
        return NOTHING
    error = found.standard_error
    return f"{in_unit(found.mean, unit)}{f' ± {100 * error / found.mean:.0f} %' if error and found.mean else ''}"
