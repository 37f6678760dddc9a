"""What a ledger has spent, in ε that a person can compare, and what still fits.

Three figures answer three questions, and none stands for another:

    shares          what the ledger counts and stops by; ε of a share is shown in proportion to its use
    ε so far        what the releases reveal together, had they been fixed beforehand; exact where it can be
    ε in the end    the budget: holds whatever is asked, even where questions depend on earlier answers

A release about single records promises nothing about the device as a whole, so ε for the whole device
exists only where every release is a device-level one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from privacy.accounting import epsilon_spent
from privacy.accounting.limits import BudgetLimits, Spend, for_one_record
from privacy.budget import PrivacyBudget, PrivacyCost, PrivacyUnit
from privacy.ledger.admission import left_of, shared
from privacy.reporting.ledger_view import Booking, LedgerView


@dataclass(frozen=True)
class ShareUse:
    """How much of one share of the budget is used up."""

    name: str
    pays_for: str
    epsilon: float
    spent: int
    limit: int

    @property
    def used(self) -> float:
        return self.spent / self.limit

    @property
    def spent_epsilon(self) -> float:
        return self.epsilon * self.spent / self.limit

    @property
    def left_epsilon(self) -> float:
        return self.epsilon * (self.limit - self.spent) / self.limit


@dataclass(frozen=True)
class _Share:
    name: str
    pays_for: str
    amount: Callable[[Spend | BudgetLimits], int]
    epsilon: Callable[[PrivacyBudget], float]


_SHARES = (
    _Share("pure", "histograms, choices, scalars", attrgetter("pure_micro_epsilon"), lambda budget: budget.pure_share),
    _Share(
        "gaussian",
        "noised model updates",
        attrgetter("mu_squared_nano"),
        lambda budget: budget.epsilon - budget.pure_share - budget.renyi_share,
    ),
    _Share("renyi", "training on single records", attrgetter("renyi_nano"), lambda budget: budget.renyi_share),
)


def shares_of(view: LedgerView) -> tuple[ShareUse, ...]:
    """The shares that this budget has, each with its use."""
    limits, spent = view.status.limits, view.status.spent
    return tuple(
        ShareUse(share.name, share.pays_for, share.epsilon(view.budget), share.amount(spent), share.amount(limits))
        for share in _SHARES
        if share.amount(limits)
    )


def promise_unit(limits: BudgetLimits) -> PrivacyUnit:
    """Whom the budget as a whole protects: single records, unless every share pays for device-level releases only."""
    about_records = limits.pure_micro_epsilon or limits.renyi_order_milli
    return PrivacyUnit.RECORD if about_records else PrivacyUnit.DEVICE


def epsilon_so_far(view: LedgerView) -> float:
    """What everything booked reveals about whom the budget protects, at its δ, had it been fixed beforehand."""
    return epsilon_after(view, len(view.bookings))


def epsilon_after(view: LedgerView, count: int) -> float:
    """The same after the first `count` bookings. What a predecessor had spent is part of it."""
    carried, ceiling = view.opened.carried, ceiling_of(view)
    if carried == Spend():
        return min(ceiling, epsilon_together(view, view.bookings[:count]))
    # It is known as sums only, and fixed sums have a bound of their own.
    spent = sum((booking.spend for booking in view.bookings[:count]), carried)
    order_milli = view.status.limits.renyi_order_milli if spent.renyi_nano else 0
    sums = BudgetLimits(
        view.budget.relation, spent.pure_micro_epsilon, spent.mu_squared_nano, spent.renyi_nano, order_milli
    )
    return min(ceiling, sums.epsilon(view.budget.delta))


def ceiling_of(view: LedgerView) -> float:
    """What ε cannot exceed whatever was asked: the budget, if the ledger books what its releases cost."""
    return math.inf if view.booking_faults else view.budget.epsilon


def epsilon_together(view: LedgerView, bookings: Sequence[Booking]) -> float:
    """What these bookings reveal about whom the budget protects, as if there were no others."""
    if not bookings:
        return 0.0
    costs, delta = [booking.cost for booking in bookings], view.budget.delta
    if promise_unit(view.status.limits) is PrivacyUnit.RECORD:
        return epsilon_about_a_record(costs, delta)
    return epsilon_of_costs(costs, delta)


def epsilon_of_device_level(view: LedgerView) -> float | None:
    """What the device-level releases reveal about the device as a whole; none where a predecessor's are unknown."""
    if view.opened.carried != Spend():
        return None
    costs = [booking.cost for booking in view.bookings if booking.cost.unit is PrivacyUnit.DEVICE]
    return epsilon_of_costs(costs, view.budget.delta) if costs else 0.0


def epsilon_about_a_record(costs: Iterable[PrivacyCost], delta: float) -> float:
    """ε of these costs together as a promise about one record."""
    costs = list(costs)
    if all(cost.unit is PrivacyUnit.DEVICE for cost in costs):
        costs = [for_one_record(cost) for cost in costs]
    return epsilon_of_costs(costs, delta)


def epsilon_of_costs(costs: Iterable[PrivacyCost], delta: float) -> float:
    """`epsilon_spent`, computed once for equal lists: devices of a fleet mostly release the same things."""
    return _epsilon_of_counted(frozenset(Counter(costs).items()), delta)


def room_for_more(view: LedgerView, booking: Booking) -> int:
    """How many more releases that cost as much as this one fit, for the same server."""
    status = view.status
    room = _times(booking.spend, status.left)
    quota = status.quotas.get(booking.server)
    if quota is not None:
        of_server = status.spent_by_server.get(booking.server, Spend())
        room = min(room, _times(booking.spend, left_of(shared(status.limits, quota), of_server)))
    return room


def _times(spend: Spend, left: Spend) -> int:
    wanted = [(share.amount(spend), share.amount(left)) for share in _SHARES]
    return min((there // needed for needed, there in wanted if needed), default=0)


@lru_cache(maxsize=65_536)
def _epsilon_of_counted(counted: frozenset[tuple[PrivacyCost, int]], delta: float) -> float:
    return epsilon_spent([cost for cost, count in counted for _ in range(count)], delta)
