"""What `covey server check` found, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privacy.reporting.tables import paragraph

if TYPE_CHECKING:
    from server_kit.daemon.check import Finding

_WIDTH = 14


def check_text(findings: Sequence[Finding]) -> str:
    """One paragraph a finding, its verdict first."""
    indent = " " * (6 + _WIDTH)
    return "\n".join(
        paragraph(finding.sentence, indent, f"{finding.verdict.value:<6}{finding.check:<{_WIDTH}}")
        for finding in findings
    )


def check_json(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "format": "covey-server-check-1",
        "findings": [
            {"check": each.check, "verdict": each.verdict.value, "sentence": each.sentence} for each in findings
        ],
    }
