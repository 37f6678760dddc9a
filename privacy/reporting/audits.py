"""`covey privacy audit`: what experiments found, beside what they could have found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from privacy.auditing.report import AuditReport
from privacy.reporting.amounts import counted, printable
from privacy.reporting.tables import paragraph, table


def audit_text(reports: Sequence[AuditReport]) -> str:
    """For a person: a table, each finding in words, and what none of it proves."""
    rows = [
        [
            printable(report.mechanism),
            f"{report.claimed_epsilon:.4f}",
            f"{report.delta:g}" if report.delta else "0",
            f"{report.lower_bound:.4f}",
            _power(report),
            f"{report.seconds:.1f}",
            "EXCEEDS" if report.exceeds_claim else "no more",
        ]
        for report in reports
    ]
    heads = ["Mechanism", "ε claimed", "δ", "ε at least", "notices", "seconds", "found"]
    parts = [table(heads, rows, "lrrrrrl")]
    parts += [paragraph(printable(str(report)) + ".", "  ", "! ") for report in reports if report.exceeds_claim]
    left_out = [
        paragraph(f"not tried on {printable(report.mechanism)}: {printable(thing)}", "  ")
        for report in reports
        for thing in report.left_out
    ]
    return "\n\n".join([*parts, *left_out, paragraph(_reading(reports))])


def audit_json(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """For a program; docs/commands.md lists the keys."""
    return {
        "format": "covey-privacy-audit-1",
        "exceeds_claim": any(report.exceeds_claim for report in reports),
        "audits": [
            {
                "mechanism": report.mechanism,
                "claimed_epsilon": report.claimed_epsilon,
                "delta": report.delta,
                "lower_bound": report.lower_bound,
                "confidence": report.confidence,
                "trials": report.trials,
                "world": report.world,
                "statistic": report.statistic,
                "detectable_shortfall": report.detectable_shortfall,
                "verdict": report.verdict.value,
                "left_out": list(report.left_out),
                "seconds": round(report.seconds, 3),
            }
            for report in reports
        ],
    }


def _power(report: AuditReport) -> str:
    shortfall = report.detectable_shortfall
    return "unknown" if shortfall is None else f"-{math.ceil(100 * shortfall)} %"


def _reading(reports: Sequence[AuditReport]) -> str:
    trials, confidence = sorted({report.trials for report in reports}), reports[0].confidence
    fewest = "" if len(trials) == 1 else f"{trials[0]} to "
    return (
        f"{fewest}{counted(trials[-1], 'run')} for each of two neighbours, {100 * confidence:g} % confidence. "
        "Looked at: errors, length, how large the numbers are, which values occur, what they end with, and on which "
        "grid they lie. "
        '"Notices" is the shortfall of noise that this audit would have found 19 times in 20. '
        "A lower bound above the claim is evidence of a fault; one below it proves nothing: "
        "an experiment cannot show that a mechanism is private."
    )
