"""Accounting runs on devices: before each release (the filter) and whenever someone asks what was spent."""

from __future__ import annotations

from fractions import Fraction

import pytest

from privacy.accounting import epsilon_of, epsilon_spent, renyi
from privacy.accounting.limits import BudgetLimits, spend_of
from privacy.accounting.planning import noise_for
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyCost, PrivacyUnit, SampledGaussian

REPLACE = NeighbouringRelation.REPLACE
PARTS = {
    "one histogram": [1_000_000],
    "twenty equal reports": [100_000] * 20,
    "five different sizes": [50_000, 100_000, 200_000, 250_000, 500_000],
}
DP_SGD = PrivacyCost(PrivacyUnit.RECORD, REPLACE, sampled=SampledGaussian(Fraction(1, 25), Fraction(1), 500))


@pytest.mark.parametrize("name", PARTS)
def test_the_closed_form(benchmark, name):
    """`covey privacy status` and every receipt: we want less than 1 ms."""
    assert 5 < benchmark(epsilon_of, 1e-6, PARTS[name], 1.25) < 9


def test_many_sizes_on_the_coarse_grid(benchmark):
    """The worst that odd questions can make of a ledger; we want less than a second for forty sizes."""
    parts = [20_000 + 7_919 * index for index in range(40)]
    assert benchmark.pedantic(epsilon_of, (1e-6, parts, 0.25), rounds=3) < sum(parts) / 10**6


def test_booking_a_gaussian(benchmark):
    """Part of every reservation: integers only, we want microseconds."""
    limits = BudgetLimits.of(PrivacyBudget(8, 1e-6))
    cost = PrivacyCost.gaussian(Fraction(1, 4), PrivacyUnit.DEVICE, REPLACE)
    assert benchmark(spend_of, cost, limits).fits(limits)


def test_booking_a_round_of_dp_sgd_for_the_first_time(benchmark):
    """One integral, then remembered: we want less than 1 ms."""
    limits = BudgetLimits.of(PrivacyBudget(16, 1e-6, training=PrivacyUnit.RECORD))

    def first_time():
        renyi.of_sampled_gaussian.cache_clear()
        return spend_of(DP_SGD, limits)

    assert benchmark(first_time).renyi_nano > 0


def test_opening_a_ledger(benchmark):
    """Once in a device's life; we want less than 10 ms."""
    assert benchmark(BudgetLimits.of, PrivacyBudget(8, 1e-6, renyi_epsilon=3)).mu_squared_nano > 0


def test_what_dp_sgd_has_spent(benchmark):
    """A search over orders, nothing remembered; we want less than 50 ms."""

    def afresh():
        renyi.of_sampled_gaussian.cache_clear()
        return epsilon_spent([DP_SGD, PrivacyCost.pure(1, PrivacyUnit.RECORD, REPLACE)], 1e-6)

    assert 11 < benchmark(afresh) < 13


def test_a_plan(benchmark):
    """Somebody waits at a terminal; we want less than 200 ms."""
    assert benchmark(noise_for, 8, 1e-6, 20, histogram_epsilon=1).epsilon <= 8
