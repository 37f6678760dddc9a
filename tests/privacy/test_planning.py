"""Plans: priced as the ledger prices them, with no more noise than needed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.limits import BudgetLimits, Spend, spend_of
from privacy.accounting.planning import Plan, epsilon_for, noise_for
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import InvalidTerms

ADD_REMOVE, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE
RECORD, DEVICE = PrivacyUnit.RECORD, PrivacyUnit.DEVICE
DP_SGD: dict[str, Any] = {"sampling_rate": 0.04, "steps_per_round": 25}


def test_the_planning_example():
    """Twenty rounds at noise 8 beside a histogram of ε=1, replace-one: 6.48, where basic composition says 25.3."""
    plan = epsilon_for(8, 20, 1e-6, histogram_epsilon=1)
    assert plan.epsilon == pytest.approx(6.477007, abs=1e-6)
    assert plan.method == "Gaussian filter, exact closed form"
    assert plan.epsilon_if_fixed == pytest.approx(6.3276, abs=1e-4)


@pytest.mark.parametrize(
    ("noise", "by_rounds"),
    [
        ("0.8", {1: 4.13, 20: 11.06}),
        ("1", {1: 2.60, 20: 7.02}),
        ("1.5", {1: 1.35, 20: 3.77}),
        ("2", {1: 1.02, 20: 2.70}),
    ],
)
def test_record_level_plans_cost_no_less_than_by_pld(noise, by_rounds):
    """The figures are Google's PLD for a fixed plan; a ledger must pay for not knowing the plan."""
    for rounds, by_pld in by_rounds.items():
        plan = epsilon_for(noise, rounds, 1e-6, RECORD, ADD_REMOVE, histogram_epsilon="0.5", **DP_SGD)
        assert by_pld < plan.epsilon_if_fixed < plan.epsilon < 1.5 * by_pld
        assert plan.method.startswith("Rényi filter at order")


plans_asked_for = st.fixed_dictionaries(
    {
        "epsilon": st.floats(0.5, 15),
        "delta": st.sampled_from([1e-9, 1e-6, 1e-4]),
        "rounds": st.integers(1, 60),
        "relation": st.sampled_from(NeighbouringRelation),
        "histogram_epsilon": st.sampled_from([0, 0.05, 0.3]),
    }
)


def plugged_back(plan: Plan) -> Plan:
    return epsilon_for(
        plan.noise_multiplier,
        plan.rounds,
        plan.delta,
        plan.unit,
        plan.relation,
        histogram_epsilon=plan.histogram_epsilon,
        sampling_rate=plan.sampling_rate,
        steps_per_round=plan.steps_per_round,
    )


@settings(max_examples=40)
@given(plans_asked_for, st.sampled_from([DEVICE, RECORD]))
def test_the_noise_of_a_plan_gives_its_epsilon_back_and_no_less_would_do(asked, unit):
    target = asked["epsilon"]
    plan = noise_for(**asked, unit=unit, **(DP_SGD if unit is RECORD else {}))
    again = plugged_back(plan)
    assert again.epsilon <= plan.epsilon <= target
    assert plan.epsilon_if_fixed <= plan.epsilon + 1e-9
    assert again.epsilon >= target * (1 - (1e-4 if unit is DEVICE else 5e-4)) - 2e-6


@settings(max_examples=25)
@given(plans_asked_for, st.sampled_from([DEVICE, RECORD]))
def test_a_ledger_opened_for_a_plan_has_room_for_it_and_for_no_more(asked, unit):
    plan = noise_for(**asked, unit=unit, **(DP_SGD if unit is RECORD else {}))
    limits = BudgetLimits.of(plan.budget)
    noise = Fraction(str(plan.noise_multiplier))
    cost = PrivacyCost.gaussian(plan.relation.changes / noise, DEVICE, plan.relation)
    if unit is RECORD:
        cost = PrivacyCost(RECORD, plan.relation, sampled=SampledGaussian(Fraction(1, 25), noise, 25))
    spent = Spend()
    if plan.histogram_epsilon:
        histogram = Fraction(str(plan.histogram_epsilon))
        spent = spend_of(PrivacyCost.pure(histogram, RECORD, plan.relation, plan.relation.changes), limits)
    each = spend_of(cost, limits)
    for _ in range(plan.rounds):
        spent += each
        assert spent.fits(limits)
    assert plan.rounds > 40 or not (spent + each).fits(limits)


@pytest.mark.parametrize("less_noise", [0.999, 0.9])
def test_less_noise_than_planned_is_refused_by_the_ledger(less_noise):
    plan = noise_for(8, 1e-6, 20, histogram_epsilon=1)
    limits = BudgetLimits.of(plan.budget)
    cost = PrivacyCost.gaussian(2 / Fraction(plan.noise_multiplier * less_noise), DEVICE, REPLACE)
    spent = sum([spend_of(cost, limits)] * 20, Spend())
    assert not spent.fits(limits)


def test_replacing_a_device_needs_twice_the_noise_of_leaving_it_out():
    replace, zero_out = (
        noise_for(8, 1e-6, 20, DEVICE, relation).noise_multiplier for relation in (REPLACE, ADD_REMOVE)
    )
    assert replace == pytest.approx(2 * zero_out, rel=1e-5)


def test_beside_a_histogram_leaving_a_device_out_is_no_cheaper():
    """The histogram's promise is about records, and one record may turn the whole update around."""
    noises = [
        noise_for(8, 1e-6, 20, DEVICE, relation, histogram_epsilon=1).noise_multiplier
        for relation in (REPLACE, ADD_REMOVE)
    ]
    assert noises[0] == pytest.approx(noises[1], rel=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"epsilon": 0},
        {"epsilon": "much"},
        {"delta": 0.0},
        {"histogram_epsilon": 8},
        {"histogram_epsilon": 9},
        {"histogram_epsilon": -1},
        {"sampling_rate": 0.04},
        {"steps_per_round": 25},
        {"unit": RECORD},
        {"unit": RECORD, "sampling_rate": 0.04},
        {"unit": RECORD, "sampling_rate": 1.5, "steps_per_round": 25},
    ],
)
def test_senseless_plans_are_refused(wrong):
    with pytest.raises(InvalidTerms, match=r"nothing was booked|no ledger was made"):
        noise_for(**{"epsilon": 8, "delta": 1e-6, "rounds": 20} | wrong)


def test_noise_too_small_for_any_epsilon_is_refused():
    with pytest.raises(InvalidTerms, match="more noise"):
        epsilon_for("0.000001", 1000, 1e-6)


def test_names_may_be_given_as_words():
    words: Any = {"unit": "device", "relation": "add_remove"}
    assert noise_for(8, 1e-6, 5, **words).relation is ADD_REMOVE
