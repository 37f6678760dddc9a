"""Whether a spend still fits, and the sentence that says why not.

The comparison is of integers (privacy.accounting.limits); ε appears in the sentence only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from privacy.accounting.limits import BudgetLimits, Spend
from privacy.budget import PrivacyBudget
from privacy.errors import BudgetExhausted

if TYPE_CHECKING:
    from privacy.ledger.state import LedgerState

WHOLE_SHARE_PPM = 10**6


class _Share(NamedTuple):
    name: str
    amount: Callable[[Spend | BudgetLimits], int]
    epsilon: Callable[[PrivacyBudget], float]


_SHARES = (
    _Share("pure-ε releases", attrgetter("pure_micro_epsilon"), lambda budget: budget.pure_share),
    _Share(
        "Gaussian noise",
        attrgetter("mu_squared_nano"),
        lambda budget: budget.epsilon - budget.pure_share - budget.renyi_share,
    ),
    _Share("DP-SGD and zCDP", attrgetter("renyi_nano"), lambda budget: budget.renyi_share),
)


def admit(state: LedgerState, mechanism: str, server: str, spend: Spend) -> tuple[Spend, Spend]:
    """What will have been spent in all and by `server`; `BudgetExhausted` if that is more than is allowed."""
    limits = state.opened.limits
    spent, by_server = state.spent + spend, state.spent_by(server) + spend
    if not spent.fits(limits):
        raise BudgetExhausted(f"{mechanism} costs {_shortage(state, spend, state.spent, limits)}")
    quota = state.quotas.get(server)
    if quota is not None and not by_server.fits(shared(limits, quota)):
        shortage = _shortage(state, spend, state.spent_by(server), shared(limits, quota))
        raise BudgetExhausted(f"server {server!r} has a quota, and {mechanism} costs {shortage}")
    return spent, by_server


def shared(limits: BudgetLimits, share_ppm: int) -> BudgetLimits:
    """A server's part of every limit, rounded down."""
    return replace(
        limits,
        pure_micro_epsilon=limits.pure_micro_epsilon * share_ppm // WHOLE_SHARE_PPM,
        mu_squared_nano=limits.mu_squared_nano * share_ppm // WHOLE_SHARE_PPM,
        renyi_nano=limits.renyi_nano * share_ppm // WHOLE_SHARE_PPM,
    )


def left_of(limits: BudgetLimits, spent: Spend) -> Spend:
    """What is left of every limit."""
    return Spend(
        max(0, limits.pure_micro_epsilon - spent.pure_micro_epsilon),
        max(0, limits.mu_squared_nano - spent.mu_squared_nano),
        max(0, limits.renyi_nano - spent.renyi_nano),
    )


def _shortage(state: LedgerState, spend: Spend, spent: Spend, limits: BudgetLimits) -> str:
    left = left_of(limits, spent)
    share = next(share for share in _SHARES if share.amount(spend) > share.amount(left))
    # Sums of μ² and of Rényi divergences are linear in the share they use up, so ε is shown in proportion.
    epsilon_per_unit = share.epsilon(state.opened.budget) / max(1, share.amount(state.opened.limits))
    asked, rest, whole = (share.amount(part) * epsilon_per_unit for part in (spend, left, limits))
    return f"ε={asked:g}, but ε={rest:g} of {whole:g} is left for {share.name}; nothing was booked or released"
