"""Google's accountant beside ours, and the mistakes that the comparison must catch."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from privacy.accounting import epsilon_spent
from privacy.accounting.second_opinion import Bracket, Verdict, compare, judge, second_opinion
from privacy.budget import MICRO, NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import InvalidTerms, MissingExtra

ADD_REMOVE, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE
RECORD, DEVICE = PrivacyUnit.RECORD, PrivacyUnit.DEVICE
DELTA = 1e-6


def pure(epsilon, relation=REPLACE, parts=1):
    return PrivacyCost.pure(Fraction(str(epsilon)), RECORD, relation, parts)


def updates(count, noise, relation=REPLACE, unit=DEVICE):
    return [PrivacyCost.gaussian(relation.changes / Fraction(noise), unit, relation)] * count


def dp_sgd(steps, relation):
    return PrivacyCost(RECORD, relation, sampled=SampledGaussian(Fraction(1, 25), Fraction(1), steps))


COSTS = {
    "histogram and rounds": [pure(1), *updates(20, 8)],
    "ten equal reports": [pure("0.2")] * 10,
    "parts off their grid": [pure("0.333333", parts=2), pure("0.123457"), pure("0.010001", parts=5)],
    "zeroed out, beside a histogram": [pure(1, ADD_REMOVE), *updates(20, 8, ADD_REMOVE)],
    "one round": updates(1, 4),
}


@pytest.mark.parametrize("name", COSTS)
def test_exact_figures_agree_and_lie_inside_the_bracket(name):
    comparison = compare(COSTS[name], DELTA)
    assert comparison.exact
    assert comparison.verdict is Verdict.AGREES
    assert comparison.theirs.optimistic - 1e-8 <= comparison.ours <= comparison.theirs.pessimistic + 1e-8
    assert comparison.theirs.pessimistic - comparison.theirs.optimistic < 2e-3


@pytest.mark.parametrize("relation", NeighbouringRelation)
def test_bounds_on_dp_sgd_agree_because_they_are_not_lower(relation):
    comparison = compare([pure("0.5", relation), dp_sgd(100, relation)], DELTA)
    assert not comparison.exact
    assert comparison.verdict is Verdict.AGREES
    assert comparison.ours > comparison.theirs.pessimistic


def test_a_discrete_laplace_booked_as_a_continuous_one_is_caught():
    costs = [pure(1, ADD_REMOVE), *updates(500, 20, ADD_REMOVE, RECORD)]
    continuous = (
        pld.from_laplace_mechanism(1.0)
        .compose(pld.from_gaussian_mechanism(20 / math.sqrt(500)))
        .get_epsilon_for_delta(DELTA)
    )
    assert continuous == pytest.approx(6.4099, abs=1e-4)
    theirs = second_opinion(costs, DELTA)
    assert judge(continuous, theirs, exact=True).verdict is Verdict.TOO_LOW
    assert judge(epsilon_spent(costs, DELTA), theirs, exact=True).verdict is Verdict.AGREES


@pytest.mark.parametrize("forgotten", [0, -1])
def test_a_forgotten_release_is_caught(forgotten):
    costs = COSTS["histogram and rounds"]
    rest = [cost for index, cost in enumerate(costs) if index != forgotten % len(costs)]
    assert judge(epsilon_spent(rest, DELTA), second_opinion(costs, DELTA), exact=True).verdict is Verdict.TOO_LOW


def test_an_exact_figure_that_is_too_high_is_caught_too():
    costs = COSTS["histogram and rounds"]
    basic = sum(epsilon_spent([cost], DELTA) for cost in costs)
    assert judge(basic, second_opinion(costs, DELTA), exact=True).verdict is Verdict.DIFFERS
    assert judge(basic, second_opinion(costs, DELTA), exact=False).verdict is Verdict.AGREES


def test_equal_parts_are_each_counted():
    """Their event accountant counts a self-composed randomised response once; we compose distributions instead."""
    one, ten = second_opinion([pure("0.2")], DELTA), second_opinion([pure("0.2")] * 10, DELTA)
    assert ten.pessimistic > one.pessimistic + 1


def test_a_figure_at_the_edge_of_the_bracket_is_not_an_alarm():
    assert judge(1.0, Bracket(1.0, 1.0001), exact=True).verdict is Verdict.AGREES
    assert judge(0.9999, Bracket(1.0, 1.0001), exact=True).verdict is Verdict.TOO_LOW
    assert judge(1.0012, Bracket(1.0, 1.0001), exact=True).verdict is Verdict.DIFFERS


def test_zcdp_has_no_second_opinion():
    with pytest.raises(InvalidTerms, match="no second opinion"):
        second_opinion([PrivacyCost(DEVICE, REPLACE, rho_nano=MICRO)], DELTA)


def test_without_the_extra_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(MissingExtra, match=r"pip install 'covey\[audit\]'"):
        second_opinion([pure(1)], DELTA)
