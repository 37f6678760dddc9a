"""What a list of costs adds up to: published figures, laws of composition, and what is shown."""

from __future__ import annotations

import inspect
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting import BudgetLimits, epsilon_of, epsilon_spent, is_exact, shown_epsilon, spend_of
from privacy.budget import NANO, NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import InvalidTerms

ADD_REMOVE, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE
RECORD, DEVICE = PrivacyUnit.RECORD, PrivacyUnit.DEVICE
DELTA = 1e-6


def histogram(epsilon, relation=REPLACE, parts=1):
    return PrivacyCost.pure(Fraction(str(epsilon)), RECORD, relation, parts)


def update(noise_multiplier, relation=REPLACE, unit=DEVICE):
    return PrivacyCost.gaussian(relation.changes / Fraction(noise_multiplier), unit, relation)


def dp_sgd(rate, noise, steps, relation=ADD_REMOVE):
    return PrivacyCost(RECORD, relation, sampled=SampledGaussian(Fraction(str(rate)), Fraction(str(noise)), steps))


def zcdp(rho, relation=REPLACE):
    return PrivacyCost(DEVICE, relation, rho_nano=round(rho * NANO))


@pytest.mark.parametrize(
    ("noise", "by_rounds"),
    [
        (2, {1: 5.82, 5: 13.45, 10: 20.23, 20: 31.33, 50: 58.52}),
        (4, {1: 3.22, 5: 6.48, 10: 9.20, 20: 13.45, 50: 23.21}),
        (8, {1: 2.04, 5: 3.51, 10: 4.69, 20: 6.48, 50: 10.37}),
        (16, {1: 1.49, 5: 2.18, 10: 2.72, 20: 3.51, 50: 5.19}),
        (32, {1: 1.24, 5: 1.56, 10: 1.81, 20: 2.18, 50: 2.94}),
    ],
)
def test_device_level_rounds_beside_one_histogram_cost_what_the_table_says(noise, by_rounds):
    for rounds, epsilon in by_rounds.items():
        assert epsilon_spent([histogram(1)] + [update(noise)] * rounds, DELTA) == pytest.approx(epsilon, abs=0.0051)


@pytest.mark.parametrize(
    ("noise", "by_rounds"),
    [
        (1, {1: 4.887, 5: 12.6, 10: 19.4, 20: 30.6}),
        (2, {1: 2.25, 5: 5.55, 10: 8.31, 20: 12.6}),
        (4, {1: 1.06, 5: 2.55, 10: 3.75, 20: 5.55}),
        (8, {1: 0.50, 5: 1.20, 10: 1.74, 20: 2.55}),
    ],
)
def test_zeroed_out_rounds_cost_what_the_table_says(noise, by_rounds):
    for rounds, epsilon in by_rounds.items():
        spent = epsilon_spent([update(noise, ADD_REMOVE)] * rounds, DELTA)
        assert spent == pytest.approx(epsilon, rel=0.005, abs=0.0051)


@pytest.mark.parametrize(
    ("noise", "zero_out", "replace"), [("1", 4.89, 11.0), ("0.77", 6.60, 15.2), ("0.6", 8.84, 20.8)]
)
def test_one_published_ldp_release_costs_more_than_it_claimed(noise, zero_out, replace):
    assert epsilon_spent([update(noise, ADD_REMOVE)], DELTA) == pytest.approx(zero_out, abs=0.0051)
    assert epsilon_spent([update(noise, REPLACE)], DELTA) == pytest.approx(replace, abs=0.051)


def test_a_discrete_laplace_costs_what_randomised_response_costs():
    spent = epsilon_spent([histogram(1, ADD_REMOVE)] + [update(20, ADD_REMOVE, RECORD)] * 500, DELTA)
    assert spent == pytest.approx(6.47701, abs=5e-5)
    as_continuous_laplace = 6.4099
    assert as_continuous_laplace < spent - 0.06


def test_two_halves_of_a_replaced_histogram_cost_less_than_one_whole():
    rounds = [update(8)] * 20
    assert epsilon_spent([*rounds, histogram(1, parts=2)], DELTA) < epsilon_spent([*rounds, histogram(1)], DELTA) - 0.1


@pytest.mark.parametrize(
    ("costs", "by_pld"),
    [
        ([dp_sgd(0.01, 1, 500), histogram(1, ADD_REMOVE)], 2.509),
        ([dp_sgd(0.01, 1, 500), histogram("0.1", ADD_REMOVE)], 1.623),
        ([dp_sgd("0.1", 1, 500), histogram(1, ADD_REMOVE)], 19.003),
        ([dp_sgd(0.04, "0.8", 25), histogram("0.5", ADD_REMOVE)], 4.13),
        ([dp_sgd(0.04, 1, 500), histogram("0.5", ADD_REMOVE)], 7.02),
        ([dp_sgd(0.04, "1.5", 250), histogram("0.5", ADD_REMOVE)], 2.80),
        ([dp_sgd(0.04, 2, 1250), histogram("0.5", ADD_REMOVE)], 4.08),
    ],
)
def test_dp_sgd_costs_no_less_than_by_pld_and_little_more(costs, by_pld):
    """The first three PLD figures took the histogram for a continuous Laplace, so they are a little low."""
    assert by_pld < epsilon_spent(costs, DELTA) < 1.26 * by_pld


def test_zcdp_costs_more_than_the_gaussian_it_might_have_been():
    exact = epsilon_spent([histogram(1)] + [update(8)] * 20, DELTA)
    bound = epsilon_spent([histogram(1)] + [zcdp(1 / 32)] * 20, DELTA)
    assert exact == pytest.approx(6.477, abs=1e-3)
    assert exact < bound < 8.32  # 8.32 is the best conversion of the zCDP total alone


mixed_costs = st.lists(
    st.one_of(
        st.floats(0.01, 1.5).map(histogram),
        st.floats(1, 30).map(update),
        st.floats(1e-4, 0.05).map(zcdp),
        st.builds(dp_sgd, st.just(0.02), st.sampled_from([1, 2]), st.integers(1, 200), st.just(REPLACE)),
    ),
    min_size=1,
    max_size=6,
)


@given(mixed_costs, st.randoms(use_true_random=False))
def test_the_order_of_releases_does_not_matter(costs, random):
    shuffled = random.sample(costs, len(costs))
    assert epsilon_spent(shuffled, DELTA) == pytest.approx(epsilon_spent(costs, DELTA), rel=1e-9)


@given(mixed_costs)
def test_every_release_costs_something(costs):
    assert epsilon_spent(costs, DELTA) >= epsilon_spent(costs[:-1], DELTA) - 2e-6


@given(mixed_costs)
def test_a_bound_with_zcdp_in_it_is_above_the_exact_figure_without(costs):
    exact_part = [cost for cost in costs if is_exact([cost])]
    assert epsilon_spent(costs, DELTA) >= epsilon_spent(exact_part, DELTA) - 2e-6


def test_nothing_released_costs_nothing():
    assert epsilon_spent([], DELTA) == 0


def test_relations_are_not_mixed():
    with pytest.raises(InvalidTerms, match="factor of two"):
        epsilon_spent([histogram(1, ADD_REMOVE), histogram(1, REPLACE)], DELTA)


def test_a_zeroed_out_device_among_record_level_releases_counts_for_its_records():
    """One record may turn the whole clipped update around: 2C, although the device was compared with nothing, C."""
    rounds = [update(8, ADD_REMOVE)] * 20
    among_records = epsilon_spent([*rounds, histogram(1, ADD_REMOVE)], DELTA)
    assert among_records == epsilon_of(DELTA, [10**6], 20 * (2 / 8) ** 2)
    at_face_value = epsilon_of(DELTA, [10**6], 20 * (1 / 8) ** 2)
    assert at_face_value < among_records - 2


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_epsilon_is_stated_at_a_sensible_delta(delta):
    with pytest.raises(InvalidTerms):
        epsilon_spent([histogram(1)], delta)


@given(st.floats(0, 100))
def test_what_is_shown_is_rounded_up_and_barely(epsilon):
    assert epsilon < shown_epsilon(epsilon) < epsilon + 1.3e-5


def test_what_is_shown_does_not_exceed_a_bound_that_holds_anyway():
    assert shown_epsilon(7.9999999) > 8
    assert shown_epsilon(7.9999999, at_most=8.0) == 8


def test_a_rate_of_selection_cannot_be_claimed_anywhere():
    """A rate exists in one place only: the device's own secret batches in DP-SGD."""
    rates = {name for name in PrivacyCost.__dataclass_fields__ if "rate" in name or "amplif" in name}
    for function in (epsilon_spent, epsilon_of, spend_of, BudgetLimits.of, PrivacyCost.gaussian, PrivacyCost.pure):
        rates |= {name for name in inspect.signature(function).parameters if "rate" in name or "amplif" in name}
    assert rates == set()
    assert "sampling_rate" in SampledGaussian.__dataclass_fields__
