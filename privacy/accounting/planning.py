"""Before a federation starts: what noise its rounds need, and what ε they cost.

A plan is priced as a ledger prices it (`limits`): a ledger opened with `Plan.budget` has room for exactly
these rounds, whatever the server asks meanwhile. `epsilon_if_fixed` is the lower figure for a plan that nobody
adapts to its answers. Being selected by a server never makes a round cheaper, so `rounds` are those a device
takes part in, whoever chose them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from privacy.accounting import epsilon_spent
from privacy.accounting.limits import BudgetLimits, Spend, first_where, spend_of
from privacy.budget import (
    MICRO,
    NeighbouringRelation,
    PrivacyBudget,
    PrivacyCost,
    PrivacyUnit,
    SampledGaussian,
    rounded_down,
)
from privacy.errors import BudgetExhausted, InvalidTerms
from privacy.exact import Number, as_written, exact_epsilon, exact_multiplier

_LARGEST_MICRO = 10**12  # of ε or of a noise multiplier: a million


@dataclass(frozen=True)
class Plan:
    """Rounds of one kind, their noise, and the ε at δ that a device pays for all of them and the histogram.

    `sampling_rate` and `steps_per_round` describe the DP-SGD of a record-level plan.
    """

    unit: PrivacyUnit
    relation: NeighbouringRelation
    rounds: int
    noise_multiplier: float
    histogram_epsilon: float
    sampling_rate: float | None
    steps_per_round: int | None
    epsilon: float
    delta: float
    epsilon_if_fixed: float
    method: str

    @property
    def budget(self) -> PrivacyBudget:
        """The budget whose ledger has room for this plan."""
        return PrivacyBudget(self.epsilon, self.delta, self.unit, self.relation, pure_epsilon=self.histogram_epsilon)


def noise_for(
    epsilon: Number,
    delta: float,
    rounds: int,
    unit: PrivacyUnit = PrivacyUnit.DEVICE,
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE,
    *,
    histogram_epsilon: Number = 0,
    sampling_rate: Number | None = None,
    steps_per_round: int | None = None,
) -> Plan:
    """The least noise, to a millionth, with which a ledger of (ε, δ) has room for all rounds and the histogram."""
    work = _Work(rounds, unit, relation, _histogram(histogram_epsilon, relation), sampling_rate, steps_per_round)
    epsilon_micro = rounded_down(as_written(epsilon, "epsilon"), MICRO)
    limits = work.limits(epsilon_micro, delta)
    noise_micro = _least(lambda micro: work.fits(Fraction(micro, MICRO), limits))
    if noise_micro is None:
        raise InvalidTerms(
            f"no noise makes {rounds} rounds fit into ε={epsilon} at δ={delta:g} beside a histogram of "
            f"ε={histogram_epsilon}; raise ε or plan fewer rounds; nothing was booked"
        )
    plan = work.plan(Fraction(noise_micro, MICRO), delta)
    # The order of a Rényi share moves with ε in steps of 0.001, so the way back may land a hair above ε.
    while plan.epsilon * MICRO > epsilon_micro + 0.5:
        noise_micro += 1 + noise_micro // 50_000
        plan = work.plan(Fraction(noise_micro, MICRO), delta)
    return plan


def epsilon_for(
    noise_multiplier: Number,
    rounds: int,
    delta: float,
    unit: PrivacyUnit = PrivacyUnit.DEVICE,
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE,
    *,
    histogram_epsilon: Number = 0,
    sampling_rate: Number | None = None,
    steps_per_round: int | None = None,
) -> Plan:
    """The least ε, to a millionth, whose ledger at δ has room for all rounds at this noise and for the histogram."""
    work = _Work(rounds, unit, relation, _histogram(histogram_epsilon, relation), sampling_rate, steps_per_round)
    return work.plan(exact_multiplier(noise_multiplier), delta)


@dataclass(frozen=True)
class _Work:
    """What is planned, but for noise, ε and δ."""

    rounds: int
    unit: PrivacyUnit
    relation: NeighbouringRelation
    histogram: PrivacyCost | None
    sampling_rate: Number | None
    steps_per_round: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))
        if self.rounds < 1:
            raise InvalidTerms(f"a plan has at least one round, got {self.rounds}; nothing was booked")
        given = [self.sampling_rate is not None, self.steps_per_round is not None]
        if given != [self.unit is PrivacyUnit.RECORD] * 2:
            raise InvalidTerms(
                "a record-level plan needs sampling_rate and steps_per_round, a device-level plan takes neither; "
                "nothing was booked"
            )

    @property
    def histogram_micro(self) -> int:
        return sum(self.histogram.pure_micro_epsilon) if self.histogram else 0

    def round_cost(self, noise: Fraction) -> PrivacyCost:
        if self.sampling_rate is None or self.steps_per_round is None:
            return PrivacyCost.gaussian(self.relation.changes / noise, self.unit, self.relation)
        steps = SampledGaussian(as_written(self.sampling_rate, "sampling_rate"), noise, self.steps_per_round)
        return PrivacyCost(self.unit, self.relation, sampled=steps)

    def limits(self, epsilon_micro: int, delta: float) -> BudgetLimits:
        pure_epsilon = self.histogram_micro / MICRO
        return BudgetLimits.of(PrivacyBudget(epsilon_micro / MICRO, delta, self.unit, self.relation, pure_epsilon))

    def fits(self, noise: Fraction, limits: BudgetLimits) -> bool:
        """Whether all rounds and the histogram fit, each rounded up as the ledger does."""
        try:
            each = spend_of(self.round_cost(noise), limits)
            histogram = spend_of(self.histogram, limits) if self.histogram else Spend()
        except BudgetExhausted:  # ε is so small that a share is rounded down to nothing
            return False
        rounds = Spend(0, each.mu_squared_nano * self.rounds, each.renyi_nano * self.rounds)
        return (rounds + histogram).fits(limits)

    def plan(self, noise: Fraction, delta: float) -> Plan:
        """The plan at this noise, with the least ε that has room for it."""
        epsilon_micro = _least(lambda micro: self.fits(noise, self.limits(micro, delta)), self.histogram_micro)
        if epsilon_micro is None:
            raise InvalidTerms(
                f"{self.rounds} rounds with noise multiplier {float(noise):g} cost more than any sensible ε; "
                "use more noise or fewer rounds; nothing was booked"
            )
        order = self.limits(epsilon_micro, delta).renyi_order
        costs = [self.round_cost(noise)] * self.rounds + ([self.histogram] if self.histogram else [])
        return Plan(
            unit=self.unit,
            relation=self.relation,
            rounds=self.rounds,
            noise_multiplier=float(noise),
            histogram_epsilon=self.histogram_micro / MICRO,
            sampling_rate=None
            if self.sampling_rate is None
            else float(as_written(self.sampling_rate, "sampling_rate")),
            steps_per_round=self.steps_per_round,
            epsilon=epsilon_micro / MICRO,
            delta=delta,
            epsilon_if_fixed=epsilon_spent(costs, delta),
            method=f"Rényi filter at order {float(order):g}" if order else "Gaussian filter, exact closed form",
        )


def _histogram(epsilon: Number, relation: NeighbouringRelation) -> PrivacyCost | None:
    """One label or feature histogram, as its mechanism books it."""
    if as_written(epsilon, "histogram_epsilon") == 0:
        return None
    relation = NeighbouringRelation(relation)
    exact = exact_epsilon(epsilon, "histogram_epsilon")
    return PrivacyCost.pure(exact, PrivacyUnit.RECORD, relation, relation.changes)


def _least(holds: Callable[[int], bool], above: int = 0) -> int | None:
    """The least whole number above `above` at which `holds` is true, if it stays true from there on."""
    enough = above + 1
    while not holds(enough):
        enough *= 2
        if enough > _LARGEST_MICRO:
            return None
    return first_where(holds, above, enough)
