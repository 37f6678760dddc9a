"""What an audit says: the claim, the bound beside it, and how large a fault would have been found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What an audit can find. It cannot find that a mechanism is private."""

    NO_EVIDENCE_OF_MORE = "no_evidence_of_more"
    EXCEEDS_CLAIM = "exceeds_claim"


@dataclass(frozen=True)
class AuditReport:
    """The result of one audit; `str` makes a sentence of it."""

    mechanism: str
    claimed_epsilon: float
    delta: float
    """0 for a pure claim."""
    lower_bound: float
    """The ε, at the same δ, that the mechanism spends at least; wrong with probability 1 - `confidence` at most."""
    world: str
    statistic: str
    trials: int
    """Runs for each neighbour that the bound rests on; for canaries, releases."""
    seconds: float
    confidence: float
    verdict: Verdict
    detectable_shortfall: float | None
    """The least share of the noise whose absence this audit notices 19 times in 20; None if that is not known."""
    left_out: tuple[str, ...] = ()
    """What could not be tried on this mechanism, and why."""

    @property
    def exceeds_claim(self) -> bool:
        return self.verdict is Verdict.EXCEEDS_CLAIM

    def __str__(self) -> str:
        claim = f"ε={self.claimed_epsilon:.4g}" + (f" at δ={self.delta:g}" if self.delta else "")
        sure = f"{100 * self.confidence:g} % confidence"
        if self.exceeds_claim:
            return (
                f"{self.mechanism} claims {claim} but spends at least ε={self.lower_bound:.4g} ({sure}); "
                f"neighbours: {self.world}; told apart by: {self.statistic}"
            )
        return (
            f"{self.mechanism}: no evidence of more than {claim} (lower bound {self.lower_bound:.4g}, {sure}); "
            f"this audit {self._power}; a lower bound cannot prove privacy"
        )

    @property
    def _power(self) -> str:
        if self.detectable_shortfall is None:
            return "cannot say how small a fault it would notice"
        return f"would notice {math.ceil(100 * self.detectable_shortfall)} % too little noise"
