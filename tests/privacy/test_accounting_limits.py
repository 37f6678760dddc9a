"""The filter: limits that hold against questions chosen after the answers."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from privacy.accounting import epsilon_spent
from privacy.accounting.closed_form import delta_of, epsilon_of, gaussian_delta
from privacy.accounting.limits import BudgetLimits, Spend, first_where, spend_of
from privacy.budget import (
    MICRO,
    NANO,
    NeighbouringRelation,
    PrivacyBudget,
    PrivacyCost,
    PrivacyUnit,
    SampledGaussian,
)
from privacy.errors import BudgetExhausted, InvalidTerms

ADD_REMOVE, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE
RECORD, DEVICE = PrivacyUnit.RECORD, PrivacyUnit.DEVICE

budgets = st.builds(
    lambda epsilon, log_delta, training, pure, renyi, relation: PrivacyBudget(
        epsilon,
        10**log_delta,
        training,
        relation,
        pure_epsilon=None if pure is None else pure * epsilon,
        renyi_epsilon=None if renyi is None else renyi * epsilon,
    ),
    st.floats(0.1, 20),
    st.floats(-9, -3),
    st.sampled_from(PrivacyUnit),
    st.none() | st.floats(0, 0.5),
    st.none() | st.floats(0, 0.4),
    st.sampled_from(NeighbouringRelation),
)


@given(budgets)
def test_all_shares_used_up_are_within_the_budget_and_nearly_reach_it(budget):
    limits = BudgetLimits.of(budget)
    assert limits.epsilon(budget.delta) <= budget.epsilon * (1 + 1e-12)
    used_up = limits.pure_micro_epsilon + limits.mu_squared_nano + limits.renyi_nano
    assert used_up > 0
    if budget.training is DEVICE and not budget.renyi_share and budget.pure_share < 0.9 * budget.epsilon:
        assert limits.epsilon(budget.delta) >= budget.epsilon - 1e-4


def test_the_shares_of_the_default_budget():
    """ε=8 at δ=1e-6: a quarter for histograms, the rest for device-level training; noise 16 lasts 92 rounds."""
    limits = BudgetLimits.of(PrivacyBudget(8, 1e-6))
    assert limits.pure_micro_epsilon == 2 * MICRO
    assert limits.renyi_order is None
    assert limits.mu_squared_nano == pytest.approx(1.4444 * NANO, rel=1e-4)
    assert limits.mu_squared_nano // spend_of(gaussian(16), limits).mu_squared_nano == 92


def test_a_share_means_what_was_written():
    """0.3 is three tenths, not the binary fraction below it: a histogram of 0.3 fits."""
    limits = BudgetLimits.of(PrivacyBudget(1, 1e-6, pure_epsilon=0.3))
    assert spend_of(PrivacyCost.pure(Fraction(3, 10), RECORD, REPLACE), limits).fits(limits)


def test_shares_written_as_decimals_may_add_up_to_the_whole():
    limits = BudgetLimits.of(PrivacyBudget(0.3, 1e-6, pure_epsilon=0.1, renyi_epsilon=0.2))
    assert limits.pure_micro_epsilon == 100_000
    assert limits.mu_squared_nano == 0
    assert limits.epsilon(1e-6) <= 0.3


def test_one_unit_more_of_mu_squared_would_overstep_the_budget():
    budget = PrivacyBudget(8, 1e-6)
    limit = BudgetLimits.of(budget).mu_squared_nano
    assert delta_of(8, [2 * MICRO], limit / NANO) <= 1e-6
    assert delta_of(8, [2 * MICRO], (limit + 10) / NANO) > 1e-6


def test_shares_that_each_take_the_whole_epsilon_are_caught():
    alone = BudgetLimits.of(PrivacyBudget(8, 1e-6, pure_epsilon=0)).mu_squared_nano
    careless = BudgetLimits(REPLACE, 2 * MICRO, alone)
    assert careless.epsilon(1e-6) > 9


def gaussian(noise, relation=REPLACE, unit=DEVICE):
    return PrivacyCost.gaussian(relation.changes / Fraction(noise), unit, relation)


# Few different sizes, because hundreds of examples with a dozen sizes each take a minute.
pure_parts = st.sampled_from([1, 1_000, 50_000, 123_457, 500_000, MICRO])


def costs_under(relation):
    return st.one_of(
        st.builds(
            lambda micro, parts: PrivacyCost(RECORD, relation, pure_micro_epsilon=(micro,) * parts),
            pure_parts,
            st.integers(1, 3),
        ),
        st.builds(lambda micro: PrivacyCost(DEVICE, relation, pure_micro_epsilon=(micro,)), pure_parts),
        st.builds(
            lambda unit, nano: PrivacyCost(unit, relation, mu_squared_nano=nano),
            st.sampled_from(PrivacyUnit),
            st.integers(1, NANO),
        ),
        st.builds(lambda nano: PrivacyCost(DEVICE, relation, rho_nano=nano), st.integers(1, NANO // 4)),
        st.builds(
            lambda rate, noise, steps: PrivacyCost(
                RECORD, relation, sampled=SampledGaussian(Fraction(rate, 100), Fraction(noise, 4), steps)
            ),
            st.sampled_from([1, 4, 20, 100]),
            st.sampled_from([3, 4, 8, 16]),
            st.integers(1, 50),
        ),
    )


@settings(max_examples=150)
@given(budgets, st.data())
def test_whatever_fits_the_limits_is_within_the_budget(budget, data):
    limits, spent = BudgetLimits.of(budget), Spend()
    admitted: list[PrivacyCost] = []
    for cost in data.draw(st.lists(costs_under(budget.relation), max_size=12)):
        try:
            after = spent + spend_of(cost, limits)
        except BudgetExhausted:
            continue
        if after.fits(limits):
            spent, admitted = after, [*admitted, cost]
    assert epsilon_spent(admitted, budget.delta) <= budget.epsilon + 1e-9


@given(budgets, st.data())
def test_filling_a_share_to_the_brim_stays_within_the_budget(budget, data):
    """Many small releases, as many as fit: the last one that fits must not be one too many."""
    limits = BudgetLimits.of(budget)
    cost = data.draw(costs_under(budget.relation))
    try:
        spend = spend_of(cost, limits)
    except BudgetExhausted:
        return
    shares = ("pure_micro_epsilon", "mu_squared_nano", "renyi_nano")
    times = min(getattr(limits, share) // getattr(spend, share) for share in shares if getattr(spend, share))
    assume(0 < times < 2000)
    assert epsilon_spent([cost] * times, budget.delta) <= budget.epsilon + 1e-9


# A server that sees each answer before it asks again. Pure releases answer + or −; a Gaussian ends the game.
# Values are its best (adaptive) distinguishing advantage: the δ of its whole view at ε.

MENU = (250_000, 500_000, 750_000, 1_000_000)


def adaptive_delta(epsilon, may_ask_pure, largest_mu_squared):
    """The largest δ at ε that any adaptive strategy reaches under the given rules of admission."""

    @cache
    def best(asked, loss):
        left = epsilon - loss / MICRO
        options = [max(0.0, -math.expm1(left)), gaussian_delta(left, math.sqrt(largest_mu_squared(asked)))]
        for part in MENU:
            if may_ask_pure((*asked, part)):
                up = 1 / (1 + math.exp(-part / MICRO))
                longer = tuple(sorted((*asked, part)))
                options.append(up * best(longer, loss + part) + (1 - up) * best(longer, loss - part))
        return max(options)

    return best((), 0)


EPSILON, DELTA = 3.0, 1e-3


def test_no_adaptive_server_gets_past_the_limits():
    limits = BudgetLimits.of(PrivacyBudget(EPSILON, DELTA, pure_epsilon=1.5))
    reached = adaptive_delta(
        EPSILON,
        may_ask_pure=lambda parts: sum(parts) <= limits.pure_micro_epsilon,
        largest_mu_squared=lambda parts: limits.mu_squared_nano / NANO,
    )
    assert 0.5 * DELTA < reached <= DELTA


def test_a_running_total_as_stopping_rule_is_overstepped_by_an_adaptive_server():
    """The broken twin: every path alone is (ε, δ)-DP by the exact accountant, their adaptive choice is not."""

    @cache
    def room_for(parts):
        def too_much(nano):
            return epsilon_of(DELTA, parts, nano / NANO) > EPSILON

        return 0 if too_much(1) else first_where(too_much, 0, 10 * NANO) - 1

    reached = adaptive_delta(
        EPSILON,
        may_ask_pure=lambda parts: epsilon_of(DELTA, parts, 0) <= EPSILON,
        largest_mu_squared=lambda parts: room_for(tuple(parts)) / NANO,
    )
    assert reached > 1.2 * DELTA


def test_a_gaussian_is_charged_to_the_renyi_share_where_there_is_no_other():
    limits = BudgetLimits.of(PrivacyBudget(8, 1e-6, training=RECORD))
    spend = spend_of(gaussian(4), limits)
    assert spend.mu_squared_nano == 0
    assert spend.renyi_nano == math.ceil(Fraction(limits.renyi_order_milli, 1000) * NANO / 4 / 2)


def test_zcdp_and_dp_sgd_are_charged_at_the_one_order():
    limits = BudgetLimits.of(PrivacyBudget(8, 1e-6, renyi_epsilon=3))
    zcdp = PrivacyCost(DEVICE, REPLACE, rho_nano=1000)
    assert spend_of(zcdp, limits) == Spend(renyi_nano=limits.renyi_order_milli)
    once, twice = (
        spend_of(PrivacyCost(RECORD, REPLACE, sampled=SampledGaussian(Fraction(1, 25), Fraction(1), steps)), limits)
        for steps in (25, 50)
    )
    assert 2 * once.renyi_nano - 1 <= twice.renyi_nano <= 2 * once.renyi_nano


@pytest.mark.parametrize(
    ("budget", "cost", "remedy"),
    [
        (PrivacyBudget(8, 1e-6), PrivacyCost(DEVICE, REPLACE, rho_nano=1), "renyi_epsilon"),
        (
            PrivacyBudget(8, 1e-6),
            PrivacyCost(RECORD, REPLACE, sampled=SampledGaussian(Fraction(1, 25), Fraction(1), 1)),
            'PrivacyBudget(training="record")',
        ),
        (PrivacyBudget(8, 1e-6, pure_epsilon=0), PrivacyCost.pure(1, RECORD, REPLACE), "pure_epsilon"),
        (PrivacyBudget(8, 1e-6, pure_epsilon=8), gaussian(4), 'PrivacyBudget(training="device")'),
    ],
)
def test_a_missing_share_is_named_with_its_remedy(budget, cost, remedy):
    with pytest.raises(BudgetExhausted) as refused:
        spend_of(cost, BudgetLimits.of(budget))
    assert remedy in str(refused.value)
    assert "nothing was booked" in str(refused.value)


def test_a_cost_under_another_relation_is_refused():
    with pytest.raises(InvalidTerms, match="factor of two"):
        spend_of(PrivacyCost.pure(1, RECORD, ADD_REMOVE), BudgetLimits.of(PrivacyBudget(8, 1e-6)))


def test_a_zeroed_out_device_is_charged_for_its_records_where_records_are_released_too():
    both = BudgetLimits.of(PrivacyBudget(8, 1e-6, relation=ADD_REMOVE))
    devices_only = BudgetLimits.of(PrivacyBudget(8, 1e-6, relation=ADD_REMOVE, pure_epsilon=0))
    cost = gaussian(4, ADD_REMOVE)
    assert spend_of(cost, devices_only).mu_squared_nano == cost.mu_squared_nano
    assert spend_of(cost, both).mu_squared_nano == 4 * cost.mu_squared_nano
    with pytest.raises(BudgetExhausted, match="single records"):
        spend_of(gaussian(4, ADD_REMOVE, RECORD), devices_only)


@given(st.lists(st.builds(Spend, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=5))
def test_spends_add_up_share_by_share(spends):
    total = sum(spends, Spend())
    assert total.pure_micro_epsilon == sum(spend.pure_micro_epsilon for spend in spends)
    limits = BudgetLimits(REPLACE, total.pure_micro_epsilon, total.mu_squared_nano, total.renyi_nano, 2000)
    assert total.fits(limits)
    for one_more in (Spend(1, 0, 0), Spend(0, 1, 0), Spend(0, 0, 1)):
        assert not (total + one_more).fits(limits)
