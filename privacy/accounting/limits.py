"""The filter: how a life-long (ε, δ) becomes a few integers that no sequence of questions can overstep.

A server may choose its next question, its noise and when to stop after seeing our answers. Under such
fully adaptive composition the running ε of the releases so far is *not* a valid stopping rule: the sequence
that was chosen because of its answers is not the sequence that the figure is about. Valid are limits fixed
before the first answer, each on a sum:

    pure ε      Σεᵢ ≤ E            basic composition
    Gaussians   Σμᵢ² ≤ M           the Gaussian-DP filter (Smith, Thakurta 2022; Koskela et al. 2022)
    Rényi       Σ D_α ≤ R          at one order α, fixed beforehand (Feldman, Zrnic 2021)

Each filter is an interactive mechanism with a fixed guarantee: E-DP, √M-GDP, (ε_R, δ_R)-DP. Questions may
interleave them, and concurrent composition of interactive f-DP mechanisms is no worse than composing their
guarantees (Vadhan, Zhang 2023; Haney et al. 2023). So whatever is asked, the whole view is dominated by

    RR(E) ⊗ RR(ε_R) ⊗ Gaussian(√M),   plus δ_R,

and E, M, R are chosen such that this is (ε, δ)-DP. Nothing here knows a rate at which a server selects
devices: it knows whom it selected, so being selected hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from privacy.accounting import renyi
from privacy.accounting.closed_form import delta_of, epsilon_of
from privacy.budget import (
    MICRO,
    NANO,
    NeighbouringRelation,
    PrivacyBudget,
    PrivacyCost,
    PrivacyUnit,
    rounded_down,
    rounded_up,
)
from privacy.errors import BudgetExhausted, InvalidTerms
from privacy.exact import as_written

_ORDERS_MILLI = (1001, 1_000_000)
# Wider than the tolerance of `epsilon_of`, so that the ε of used-up limits never reads as more than the budget.
_NUMERICAL_MARGIN = 1e-9


@dataclass(frozen=True)
class BudgetLimits:
    """What each share of a budget may sum to, fixed when the ledger is created and rounded down.

    `renyi_order_milli` is the one order, in thousandths, at which Rényi costs are counted; 0 without a Rényi share.
    """

    relation: NeighbouringRelation
    pure_micro_epsilon: int
    mu_squared_nano: int
    renyi_nano: int = 0
    renyi_order_milli: int = 0

    @classmethod
    def of(cls, budget: PrivacyBudget) -> BudgetLimits:
        """The shares of `budget`; all of them used up is still (ε, δ)-DP."""
        pure = rounded_down(as_written(budget.pure_share, "pure_epsilon"), MICRO)
        renyi_epsilon = rounded_down(as_written(budget.renyi_share, "renyi_epsilon"), MICRO)
        has_gaussians = budget.pure_share + budget.renyi_share < budget.epsilon * (1 - 1e-9)
        renyi_delta = _renyi_delta(budget.delta, has_gaussians) if renyi_epsilon else 0.0
        order_milli, renyi_nano = _renyi_limit(renyi_epsilon / MICRO, renyi_delta) if renyi_epsilon else (0, 0)
        mu_squared_nano = 0
        if has_gaussians:
            mu_squared_nano = _mu_squared_limit(budget.epsilon, budget.delta - renyi_delta, (pure, renyi_epsilon))
        return cls(budget.relation, pure, mu_squared_nano, renyi_nano, order_milli)

    @property
    def renyi_order(self) -> Fraction | None:
        """The order of the Rényi share, or None without one."""
        return Fraction(self.renyi_order_milli, 1000) if self.renyi_order_milli else None

    @property
    def hold_records(self) -> bool:
        """Whether releases about single records may be charged here. Under REPLACE that is no question."""
        return self.relation is NeighbouringRelation.REPLACE or bool(self.pure_micro_epsilon or self.renyi_order_milli)

    def epsilon(self, delta: float) -> float:
        """What the device reveals at δ once every share is used up, whatever was asked in whatever order."""
        parts, renyi_delta = [self.pure_micro_epsilon], 0.0
        if self.renyi_nano:
            renyi_delta = _renyi_delta(delta, has_gaussians=self.mu_squared_nano > 0)
            reached = renyi.epsilon_at(self.renyi_nano / NANO, self.renyi_order_milli / 1000, renyi_delta)
            parts.append(rounded_up(reached, MICRO))
        return epsilon_of(delta - renyi_delta, parts, self.mu_squared_nano / NANO)


@dataclass(frozen=True)
class Spend:
    """What was, or would be, taken from each share; rounded up."""

    pure_micro_epsilon: int = 0
    mu_squared_nano: int = 0
    renyi_nano: int = 0

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.pure_micro_epsilon + other.pure_micro_epsilon,
            self.mu_squared_nano + other.mu_squared_nano,
            self.renyi_nano + other.renyi_nano,
        )

    def fits(self, limits: BudgetLimits) -> bool:
        """Whether every share suffices. This, on the sum of all spends, is the only stopping rule."""
        return (
            self.pure_micro_epsilon <= limits.pure_micro_epsilon
            and self.mu_squared_nano <= limits.mu_squared_nano
            and self.renyi_nano <= limits.renyi_nano
        )


def spend_of(cost: PrivacyCost, limits: BudgetLimits) -> Spend:
    """Which shares `cost` is charged to, and how much. Known before any data are read.

    Gaussians go to the share of Σμ², or without one to the Rényi share; zCDP and DP-SGD to the Rényi share.
    A ledger that can hold releases about single records charges a device-level one for what it means to a record.
    """
    if cost.relation is not limits.relation:
        raise InvalidTerms(
            f"this release is private under {cost.relation}, but the ledger counts under {limits.relation}; "
            "mixing them hides a factor of two; nothing was booked"
        )
    if limits.hold_records:
        cost = for_one_record(cost)
    elif cost.unit is PrivacyUnit.RECORD:
        raise _no_share("releases about single records", "PrivacyBudget(pure_epsilon=...) or renyi_epsilon")
    pure = sum(cost.pure_micro_epsilon)
    if pure and not limits.pure_micro_epsilon:
        raise _no_share("pure ε", "PrivacyBudget(pure_epsilon=...)")
    gaussian_share = limits.mu_squared_nano > 0
    rest = _renyi_spend(cost, limits, with_gaussian=not gaussian_share)
    return Spend(pure, cost.mu_squared_nano if gaussian_share else 0, rest)


def for_one_record(cost: PrivacyCost) -> PrivacyCost:
    """What a release of either unit reveals about one record.

    Under REPLACE whatever hides the device hides each of its records. Under ADD_REMOVE a device-level release is
    compared with none at all, while another record may turn one clipped update into its opposite: twice the
    distance, as under REPLACE. Pure releases of a device hide any change of its data, so they stay as they are.
    """
    if cost.unit is PrivacyUnit.RECORD or cost.relation is NeighbouringRelation.REPLACE:
        return cost
    return replace(
        cost,
        relation=NeighbouringRelation.REPLACE,
        mu_squared_nano=4 * cost.mu_squared_nano,
        rho_nano=4 * cost.rho_nano,
    )


def _renyi_spend(cost: PrivacyCost, limits: BudgetLimits, *, with_gaussian: bool) -> int:
    mu_squared_nano = cost.mu_squared_nano if with_gaussian else 0
    if not (mu_squared_nano or cost.rho_nano or cost.sampled):
        return 0
    if not limits.renyi_order_milli:
        if mu_squared_nano:
            raise _no_share("Gaussian noise", 'PrivacyBudget(training="device")')
        raise _no_share("DP-SGD or zCDP", 'PrivacyBudget(training="record") or renyi_epsilon')
    order = Fraction(limits.renyi_order_milli, 1000)
    spent = rounded_up(order * Fraction(mu_squared_nano, 2) + order * cost.rho_nano, 1)
    if cost.sampled:
        rate, noise = float(cost.sampled.sampling_rate), float(cost.sampled.noise_multiplier)
        step = renyi.of_sampled_gaussian(rate, noise, float(order), cost.relation)
        spent += rounded_up(Fraction(step) * cost.sampled.steps, NANO)
    return spent


def _no_share(what: str, remedy: str) -> BudgetExhausted:
    return BudgetExhausted(
        f"this ledger has no share of its budget for {what}, and shares are fixed when it is created; "
        f"create it with {remedy}; nothing was booked"
    )


def _renyi_delta(delta: float, has_gaussians: bool) -> float:
    return delta / 2 if has_gaussians else delta


def _renyi_limit(epsilon: float, delta: float) -> tuple[int, int]:
    """The order, in thousandths, and the limit there: the lowest order that holds 95 % of the most Gaussian noise.

    Divergences of DP-SGD with little noise leap up at high orders, so a lower order is worth a twentieth.
    """

    def capacity(order_milli: int) -> float:
        return renyi.limit_at(epsilon, order_milli / 1000, delta) / order_milli

    # Capacity rises to one peak and falls again; any order is valid, so the searches need not prove it.
    peak = first_where(lambda milli: capacity(milli + 1) <= capacity(milli), *_ORDERS_MILLI)
    enough = min(capacity(peak), 0.95 * capacity(peak))
    order_milli = first_where(lambda milli: capacity(milli) >= enough, _ORDERS_MILLI[0], peak)
    return order_milli, max(0, rounded_down(renyi.limit_at(epsilon, order_milli / 1000, delta), NANO))


def _mu_squared_limit(epsilon: float, delta: float, parts: tuple[int, ...]) -> int:
    """The largest μ², in 1e-9, that is (ε, δ)-DP beside the pure `parts`."""

    def fits(mu_squared_nano: int) -> bool:
        reached = delta_of(epsilon * (1 - _NUMERICAL_MARGIN), parts, mu_squared_nano / NANO)
        return reached <= delta * (1 - _NUMERICAL_MARGIN)

    beyond = 1
    while fits(beyond):
        beyond *= 2
    return first_where(lambda mu_squared_nano: not fits(mu_squared_nano), 0, beyond) - 1


def first_where(condition: Callable[[int], bool], low: int, high: int) -> int:
    """The least whole number in (low, high] where `condition` holds; it holds at `high` and from there on."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high
