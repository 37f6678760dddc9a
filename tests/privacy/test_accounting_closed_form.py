"""The closed form against brute force, multiple precision, and Google's PLD accountant."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import example, given
from hypothesis import strategies as st

from privacy.accounting import closed_form, shown_epsilon
from privacy.accounting.closed_form import delta_of, epsilon_of, gaussian_delta
from privacy.budget import MICRO
from privacy.errors import InvalidTerms

# Parts in micro-ε, all on the PLD's grid of 1e-4 so that what differs is not the rounding of its input.
PARTS = {
    "none": [],
    "one": [1_000_000],
    "replaced histogram": [250_000, 250_000],
    "ten equal": [100_000] * 10,
    "fifty small": [10_000] * 50,
    "large": [4_000_000],
    "three kinds": [500_000] + [250_000] * 2 + [50_000] * 3,
    "odd sizes": [12_300, 45_600, 78_900, 11_100, 333_300],
    "large and small": [2_000_000] + [100_000] * 3,
    "seven": [300_000] * 7,
    "twenty": [150_000] * 20,
    "tiny": [1_000] * 4,
}
MU_SQUARED = [0.0, 0.0025, 0.04, 0.25, 1.25, 4.0]
DELTAS = [1e-3, 1e-5, 1e-6, 1e-9]
INTERVAL = 1e-4


@lru_cache
def gaussian_pld(mu_squared):
    return pld.from_gaussian_mechanism(1 / math.sqrt(mu_squared), value_discretization_interval=INTERVAL)


@lru_cache
def pure_pld(name):
    whole = pld.identity(value_discretization_interval=INTERVAL)
    for part in PARTS[name]:
        up, point = 1 / (1 + math.exp(-part / MICRO)), part // 100
        whole = whole.compose(
            pld.PrivacyLossDistribution.create_from_rounded_probability({point: up, -point: 1 - up}, 0.0, INTERVAL)
        )
    return whole


@pytest.mark.parametrize("mu_squared", MU_SQUARED)
def test_epsilon_agrees_with_googles_pld_and_is_never_shown_lower(mu_squared):
    """284 compositions in all. "Lower" is meant against the *pessimistic* PLD at its default grid of 1e-4.

    That PLD errs upwards, by less than 1e-6 here, so our exact ε may lie below it by that much; what we show may not.
    """
    for name, parts in PARTS.items():
        if not parts and not mu_squared:
            continue
        composed = pure_pld(name).compose(gaussian_pld(mu_squared)) if mu_squared else pure_pld(name)
        for delta in DELTAS:
            theirs = composed.get_epsilon_for_delta(delta)
            ours = epsilon_of(delta, parts, mu_squared)
            assert abs(ours - theirs) < 1e-6, (name, delta)
            assert theirs <= shown_epsilon(ours) < theirs + 2e-5, (name, delta)


@pytest.mark.parametrize(("twin", "error"), [("drops a part", 5e-4), ("counts half of μ²", 0.1)])
def test_a_wrong_closed_form_would_not_agree_with_the_pld(twin, error):
    wrong = {
        "drops a part": epsilon_of(1e-6, PARTS["fifty small"][1:], 0.04),
        "counts half of μ²": epsilon_of(1e-6, PARTS["fifty small"], 0.02),
    }[twin]
    theirs = pure_pld("fifty small").compose(gaussian_pld(0.04)).get_epsilon_for_delta(1e-6)
    assert shown_epsilon(wrong) < theirs - error


parts_of_any_size = st.lists(st.integers(0, 3_000_000), max_size=6)


@given(parts_of_any_size, st.floats(0, 9), st.floats(-1, 12))
def test_delta_is_the_sum_over_all_outcomes(parts, mu_squared, epsilon):
    mu = math.sqrt(mu_squared)
    brute_force = 0.0
    for signs in itertools.product((1, -1), repeat=len(parts)):
        losses = [sign * part / MICRO for sign, part in zip(signs, parts, strict=True)]
        mass = math.prod(1 / (1 + math.exp(-loss)) for loss in losses)
        brute_force += mass * gaussian_delta(epsilon - math.fsum(losses), mu)
    assert delta_of(epsilon, parts, mu_squared) == pytest.approx(brute_force, rel=1e-9, abs=1e-14)


@given(st.floats(-4.5, 1.5), st.floats(-8, 11))
@example(-4.5, 11.0)
@example(1.5, -8.0)
def test_the_gaussian_term_is_right_to_nine_digits_far_into_the_tail(log_mu, deviations):
    mu = 10**log_mu
    epsilon = mu * mu / 2 + deviations * mu
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        truth = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    assert gaussian_delta(epsilon, mu) == pytest.approx(float(truth), rel=1e-9)


def test_a_large_epsilon_does_not_overflow():
    """Why it is not computed as it is written in the papers."""
    with pytest.raises(OverflowError):
        math.exp(1100.0)
    assert 0 < gaussian_delta(1100.0, 40.0) < 1e-10


@given(parts_of_any_size, st.floats(1e-6, 9), st.floats(1e-12, 0.5))
def test_epsilon_is_the_upper_end_and_tight(parts, mu_squared, delta):
    epsilon = epsilon_of(delta, parts, mu_squared)
    assert delta_of(epsilon, parts, mu_squared) <= delta
    if epsilon > 1e-6:
        assert delta_of(epsilon - 1e-6, parts, mu_squared) > delta


@given(parts_of_any_size, st.integers(1, 10**6), st.floats(0, 4), st.floats(0.01, 2))
def test_more_releases_never_cost_less(parts, another, mu_squared, more):
    base = epsilon_of(1e-6, parts, mu_squared)
    assert epsilon_of(1e-6, [*parts, another], mu_squared) >= base - 1e-9
    assert epsilon_of(1e-6, parts, mu_squared + more) >= base - 1e-9


@given(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=8))
def test_pure_releases_never_cost_more_than_their_sum(parts):
    assert epsilon_of(1e-9, parts, 0) <= sum(parts) / MICRO + 1e-9
    assert epsilon_of(0, parts, 0) == sum(parts) / MICRO


def test_without_delta_a_gaussian_has_no_epsilon():
    assert epsilon_of(0, [], 1.0) == math.inf


def test_nothing_released_costs_nothing():
    assert epsilon_of(1e-6, [], 0) == 0
    assert delta_of(0, [], 0) == 0


@given(st.lists(st.integers(10_000, 400_000), min_size=5, max_size=9, unique=True), st.floats(0, 2))
def test_a_coarser_grid_only_raises_delta(parts, mu_squared):
    coarse = closed_form._coarsened(closed_form._loss_distribution(parts), most=64)
    mu = math.sqrt(mu_squared)
    assert len(coarse) <= 64 + 2
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact = delta_of(epsilon, parts, mu_squared)
        assert closed_form._delta(epsilon, coarse, mu) >= exact * (1 - 1e-9) - 1e-15


def test_many_different_parts_stay_close_to_the_exact_figure(monkeypatch):
    parts = [20_000 + 7_919 * index for index in range(13)]
    exact = epsilon_of(1e-6, parts, 0.25)
    monkeypatch.setattr(closed_form, "_MOST_LOSSES", 2048)
    assert exact <= epsilon_of(1e-6, parts, 0.25) <= exact + 1e-4


def test_rounding_parts_down_to_a_grid_would_be_caught():
    parts = [20_000 + 7_919 * index for index in range(13)]
    rounded_down = [part // 10_000 * 10_000 for part in parts]
    assert epsilon_of(1e-6, rounded_down, 0.25) < epsilon_of(1e-6, parts, 0.25) - 1e-2


@pytest.mark.parametrize(
    ("delta", "parts", "mu_squared"), [(1.0, [], 1.0), (-1e-9, [], 1.0), (1e-6, [-1], 0.0), (1e-6, [], math.inf)]
)
def test_senseless_terms_are_refused(delta, parts, mu_squared):
    with pytest.raises(InvalidTerms):
        epsilon_of(delta, parts, mu_squared)
