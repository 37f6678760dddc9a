"""Checking by experiment that a mechanism hides as much as it claims; see docs/decisions/0005-empirical-audit.md."""

from privacy.auditing.canaries import smoke
from privacy.auditing.game import audit, audit_update
from privacy.auditing.mechanisms import BUILT_IN, built_in, extremes_of, load, usual_trials
from privacy.auditing.report import AuditReport, Verdict
from privacy.auditing.worlds import World

__all__ = [
    "AuditReport",
    "BUILT_IN",
    "Verdict",
    "World",
    "audit",
    "audit_update",
    "built_in",
    "extremes_of",
    "load",
    "smoke",
    "usual_trials",
]
