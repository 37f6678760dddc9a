"""What a ledger says of itself: spent, left, by whom, how far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.ledger.admission import left_of

if TYPE_CHECKING:
    from privacy.accounting.limits import BudgetLimits, Spend
    from privacy.budget import PrivacyBudget
    from privacy.ledger.state import LedgerState


@dataclass(frozen=True)
class LedgerStatus:
    """What was spent, what is left, and how far the ledger has come."""

    ledger: str
    budget: PrivacyBudget
    limits: BudgetLimits
    spent: Spend
    left: Spend
    spent_by_server: dict[str, Spend]
    quotas: dict[str, int]
    """The most that a server may use, in millionths of every limit."""
    sequence: int
    digest: str

    @classmethod
    def of(cls, state: LedgerState) -> LedgerStatus:
        return cls(
            ledger=state.opened.ledger,
            budget=state.opened.budget,
            limits=state.opened.limits,
            spent=state.spent,
            left=left_of(state.opened.limits, state.spent),
            spent_by_server=dict(state.by_server),
            quotas=dict(state.quotas),
            sequence=state.sequence,
            digest=state.digest.hex(),
        )
