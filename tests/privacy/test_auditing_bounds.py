"""The bounds behind an audit: never above the truth more often than they say, checked without sampling.

For small numbers of runs every outcome can be listed with its probability, so coverage is a sum.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.auditing.bounds import (
    gaussian_mu_bound,
    guessing_bound,
    guessing_p_value,
    rate_at_least,
    rate_at_most,
    two_world_bound,
)
from privacy.auditing.power import POWER, detectable_epsilon, detectable_mu
from privacy.errors import InvalidTerms, MissingExtra

ALPHA = 0.05


def rate_of(epsilon: float) -> float:
    return 1 / (1 + math.exp(-epsilon))


def probability_above(bound, truth: float, present: tuple[int, float], without: tuple[int, float]) -> float:
    """How often `bound(hits, alarms)` exceeds the truth, summed over all outcomes of two independent counts."""
    (runs, rate), (other_runs, other_rate) = present, without
    hits = stats.binom.pmf(np.arange(runs + 1), runs, rate)
    alarms = stats.binom.pmf(np.arange(other_runs + 1), other_runs, other_rate)
    exceeds = [[bound(i, j) > truth for j in range(other_runs + 1)] for i in range(runs + 1)]
    return float(hits @ np.array(exceeds, dtype=float) @ alarms)


@pytest.mark.parametrize(("hits", "runs"), [(0, 10), (1, 10), (10, 10), (7, 20), (731, 1000)])
def test_limits_of_a_rate_are_clopper_and_pearsons(hits, runs):
    theirs = stats.binomtest(hits, runs).proportion_ci(1 - 2 * ALPHA, method="exact")
    assert rate_at_least(hits, runs, ALPHA) == pytest.approx(theirs.low, abs=1e-12)
    assert rate_at_most(hits, runs, ALPHA) == pytest.approx(theirs.high, abs=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.731, 0.99])
def test_a_rate_lies_below_its_lower_limit_at_most_as_often_as_stated(rate):
    outcomes = stats.binom.pmf(np.arange(41), 40, rate)
    assert sum(outcomes[hits] for hits in range(41) if rate_at_least(hits, 40, ALPHA) > rate) <= ALPHA
    assert sum(outcomes[hits] for hits in range(41) if rate_at_most(hits, 40, ALPHA) < rate) <= ALPHA


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("guesses", [1, 30, 200])
def test_guesses_about_coins_exceed_the_truth_at_most_as_often_as_stated(epsilon, guesses):
    outcomes = stats.binom.pmf(np.arange(guesses + 1), guesses, rate_of(epsilon))
    above = [guessing_bound(right, guesses, ALPHA) > epsilon for right in range(guesses + 1)]
    assert outcomes @ np.array(above) <= ALPHA


def test_a_bound_without_its_confidence_would_exceed_the_truth_half_the_time():
    outcomes = stats.binom.pmf(np.arange(201), 200, rate_of(1.0))
    point_estimates = [right / 200 > rate_of(1.0) for right in range(201)]
    assert outcomes @ np.array(point_estimates) > 0.4


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.5])
def test_the_gaussian_bound_exceeds_the_truth_at_most_as_often_as_stated(mu, threshold):
    hit_rate, alarm_rate = stats.norm.sf(threshold - mu), stats.norm.sf(threshold)
    above = probability_above(
        lambda hits, alarms: gaussian_mu_bound(alarms, 50, 40 - hits, 40, alpha=ALPHA),
        mu,
        (40, hit_rate),
        (50, alarm_rate),
    )
    assert above <= ALPHA


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_two_world_bound_exceeds_the_truth_at_most_as_often_as_stated(epsilon, swapped, delta):
    # The extreme pair of rates that (ε, δ)-DP allows.
    low = (1 - delta) / (1 + math.exp(epsilon))
    rates = (1 - low, low) if not swapped else (low, 1 - low)
    above = probability_above(
        lambda hits, alarms: two_world_bound(hits, 40, alarms, 40, alpha=ALPHA, delta=delta),
        epsilon,
        (40, rates[0]),
        (40, rates[1]),
    )
    assert above <= ALPHA


@pytest.mark.parametrize(
    ("hits", "alarms"), [(900, 300), (300, 900), (995, 600), (600, 995)], ids=["event", "turned", "rest", "rest turned"]
)
def test_each_of_the_four_ratios_is_looked_at(hits, alarms):
    found = two_world_bound(hits, 1000, alarms, 1000, alpha=ALPHA)
    ratios = (hits / alarms, alarms / hits, (1000 - hits) / (1000 - alarms), (1000 - alarms) / (1000 - hits))
    assert 0.75 * math.log(max(ratios)) < found < math.log(max(ratios))


def test_two_identical_worlds_show_nothing():
    assert two_world_bound(500, 1000, 500, 1000, alpha=ALPHA) == 0
    assert gaussian_mu_bound(500, 1000, 500, 1000, alpha=ALPHA) == 0
    assert guessing_bound(500, 1000, ALPHA) == 0


def test_no_runs_show_nothing():
    assert two_world_bound(0, 0, 0, 0, alpha=ALPHA) == 0
    assert gaussian_mu_bound(0, 0, 0, 0, alpha=ALPHA) == 0
    assert guessing_bound(0, 0, ALPHA) == 0


def p_value_by_the_book(right, guesses, epsilon, canaries, delta):
    """Theorem 5.2 of Steinke, Nasr and Jagielski, term by term."""
    outcomes = stats.binom(guesses, rate_of(epsilon))
    reached = outcomes.sf(right - 1)
    most = max((outcomes.sf(right - i - 1) - reached) / i for i in range(1, right + 1))
    return min(1.0, reached + 2 * canaries * delta * most)


@pytest.mark.parametrize(("right", "guesses", "epsilon"), [(1, 3, 0.5), (40, 50, 1.0), (50, 50, 3.0), (300, 400, 0.1)])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_the_p_value_of_canaries_is_the_papers(right, guesses, epsilon, delta):
    ours = guessing_p_value(right, guesses, epsilon, canaries=500, delta=delta)
    assert ours == pytest.approx(p_value_by_the_book(right, guesses, epsilon, 500, delta), rel=1e-9)


def test_a_delta_lowers_the_bound_and_a_vanishing_one_does_not():
    pure = guessing_bound(450, 500, ALPHA)
    assert guessing_bound(450, 500, ALPHA, canaries=500, delta=1e-15) == pytest.approx(pure, abs=1e-6)
    assert guessing_bound(450, 500, ALPHA, canaries=500, delta=1e-5) < pure
    assert guessing_bound(450, 500, ALPHA, canaries=500, delta=0.1) == 0


@given(guesses=st.integers(1, 5000), data=st.data())
def test_more_right_guesses_never_show_less(guesses, data):
    right = data.draw(st.integers(0, guesses - 1))
    assert guessing_bound(right, guesses, ALPHA) <= guessing_bound(right + 1, guesses, ALPHA)


@pytest.mark.parametrize(("guesses", "claimed"), [(500, 1.0), (20_000, 1.0), (5_000, 0.1), (40_000, 4.0)])
def test_the_stated_power_is_reached_and_not_reached_by_less(guesses, claimed):
    convicts = [guessing_bound(right, guesses, 0.001) > claimed for right in range(guesses + 1)]
    needed = convicts.index(True)
    detectable = detectable_epsilon(claimed, guesses, 0.001)
    assert detectable > claimed
    assert stats.binom.sf(needed - 1, guesses, rate_of(detectable)) == pytest.approx(POWER, abs=1e-6)


@pytest.mark.parametrize(("runs", "claimed"), [(200, 1.0), (2_000, 0.5), (400, 2.0)])
def test_the_stated_gaussian_power_is_reached(runs, claimed):
    mu = detectable_mu(claimed, runs, 0.01)
    error_rate = stats.norm.sf(mu / 2)
    counts = np.arange(runs + 1)
    weights = stats.binom.pmf(counts, runs, error_rate)
    likely = counts[weights > 1e-9]
    seen = sum(
        weights[alarms] * weights[misses]
        for alarms in likely
        for misses in likely
        if gaussian_mu_bound(alarms, runs, misses, runs, alpha=0.01) > claimed
    )
    assert POWER - 1e-3 <= seen < 0.999


@pytest.mark.parametrize("noise_multiplier", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("changes", [1, 2])
def test_the_discrete_gaussian_is_told_apart_no_better_than_the_continuous_one(noise_multiplier, changes):
    """On its grid of 1024 steps to a clip norm, to within 1e-5 of μ: audits treat it as a Gaussian."""
    deviation, shift = 1024 * noise_multiplier, 1024 * changes
    steps = np.arange(-int(9 * deviation), int(9 * deviation) + shift)
    weights = [np.exp(-((steps - centre) ** 2) / (2 * deviation**2)) for centre in (0, shift)]
    first, second = (weight / weight.sum() for weight in weights)
    alarms, misses = first[::-1].cumsum()[::-1], second.cumsum() - second
    within = (alarms > 1e-7) & (misses > 1e-7)
    shown = -stats.norm.ppf(alarms[within]) - stats.norm.ppf(misses[within])
    assert shown.max() < changes / noise_multiplier + 1e-5


def test_an_audit_that_cannot_reach_the_claim_has_no_power():
    assert math.isinf(detectable_epsilon(12.0, 20_000, 0.001))
    assert math.isinf(detectable_mu(12.0, 1_000, 0.001))
    assert math.isinf(detectable_epsilon(1.0, 0, 0.001))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: rate_at_least(11, 10, ALPHA),
        lambda: rate_at_least(-1, 10, ALPHA),
        lambda: rate_at_most(5, 10, 0.0),
        lambda: guessing_bound(5, 10, 1.0),
        lambda: guessing_bound(5, 10, ALPHA, canaries=9, delta=1e-6),
    ],
)
def test_counts_that_make_no_sense_are_refused(ask):
    with pytest.raises(InvalidTerms):
        ask()


def test_without_scipy_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(MissingExtra, match=r"pip install 'covey\[audit\]'"):
        rate_at_least(5, 10, ALPHA)
