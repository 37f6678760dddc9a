"""Rényi divergences of what a device releases, and what they mean as (ε, δ).

Every formula is the divergence itself, not an approximation of it: randomised response, the Gaussian,
ρ-zCDP by definition, and a step of DP-SGD. For that step the worst pair of neighbours is one-dimensional:

    ADD_REMOVE   (1−q)·N(0, σ²) + q·N(1, σ²)   against   N(0, σ²)                       (Mironov et al. 2019)
    REPLACE      (1−q)·N(0, σ²) + q·N(1, σ²)   against   (1−q)·N(0, σ²) + q·N(−1, σ²)

The second follows from the sign of three derivatives, written out in docs/decisions/0003-accounting.md.
Its integral has no closed form, but is smooth: the trapezoid rule errs by less than one part in 10¹⁷.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from privacy.budget import NeighbouringRelation

_RATIO = 1.25
_COARSE_ORDERS = tuple(1 + 0.02 * _RATIO**index for index in range(49))  # 1.02 to about 900
_MOST_NODES = 20_000
_TAIL = 9.0


def of_pure(epsilon: float, order: float) -> float:
    """Of randomised response at ε, which dominates every ε-DP release."""
    return (_log_cosh((order - 0.5) * epsilon) - _log_cosh(epsilon / 2)) / (order - 1)


def of_gaussian(mu_squared: float, order: float) -> float:
    """Of a μ-GDP release."""
    return order * mu_squared / 2


def of_zcdp(rho: float, order: float) -> float:
    """Of a ρ-zCDP release, by definition at most this."""
    return order * rho


@lru_cache(maxsize=16_384)
def of_sampled_gaussian(
    sampling_rate: float, noise_multiplier: float, order: float, relation: NeighbouringRelation
) -> float:
    """Of one step of DP-SGD with Poisson batches, from above."""
    unsampled = of_gaussian((relation.changes / noise_multiplier) ** 2, order)
    if sampling_rate == 1:
        return unsampled
    slope = 1 / noise_multiplier
    replaces = relation is NeighbouringRelation.REPLACE
    peak = (2 * order - 1 if replaces else order) * slope
    step = _trapezoid_step(noise_multiplier, order)
    # With so little noise sampling hardly helps, and the bound without it is cheap. Sampling never hurts.
    if (peak + 2 * _TAIL) / step > _MOST_NODES:
        return unsampled
    log_in, log_out = math.log(sampling_rate), math.log1p(-sampling_rate)

    def log_ratio(shift: float) -> float:
        """ln(1 − q + q·N(±1)/N(0)) where ln N(±1)/N(0) = shift."""
        inside = log_in + shift
        high, low = (inside, log_out) if inside > log_out else (log_out, inside)
        return high + math.log1p(math.exp(low - high))

    def log_integrand(z: float) -> float:
        # z is the noise in units of σ under N(0, σ²).
        value = order * log_ratio(slope * z - slope * slope / 2) - z * z / 2
        return value - (order - 1) * log_ratio(-slope * z - slope * slope / 2) if replaces else value

    log_moment = _log_integral(log_integrand, -_TAIL, peak + _TAIL, step) - math.log(2 * math.pi) / 2
    # Rounding of exponents up to peak² in double precision; added so that the result stays an upper bound.
    rounding = 1e-14 * (1 + (peak + _TAIL) ** 2)
    return min(unsampled, (log_moment + rounding) / (order - 1))


def epsilon_at(renyi: float, order: float, delta: float) -> float:
    """The ε at δ of a release of Rényi divergence `renyi` at `order` (Canonne, Kamath, Steinke 2020)."""
    return max(0.0, renyi + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def limit_at(epsilon: float, order: float, delta: float) -> float:
    """The largest Rényi divergence at `order` that is (ε, δ)-DP; below 0 where none is."""
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


def best_epsilon(renyi: Callable[[float], float], delta: float) -> float:
    """The least ε at δ over all orders. Every order is valid, so a search that stops early costs tightness only."""
    epsilon_by_order: dict[float, float] = {}
    best = math.inf
    for order in _COARSE_ORDERS:
        divergence = renyi(order)
        # Divergences grow with the order: from here on no order does better.
        if divergence + math.log1p(-1 / order) > best:
            break
        epsilon_by_order[order] = epsilon_at(divergence, order, delta)
        best = min(best, epsilon_by_order[order])
    around = math.log(min(epsilon_by_order, key=epsilon_by_order.__getitem__) - 1)
    refined = _least(
        lambda log_excess: epsilon_at(renyi(1 + math.exp(log_excess)), 1 + math.exp(log_excess), delta),
        around - math.log(_RATIO),
        around + math.log(_RATIO),
    )
    return min(best, refined)


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """The least value met by a golden-section search."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(24):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
    return min(at_left, at_right)


def _trapezoid_step(noise_multiplier: float, order: float) -> float:
    """A step at which the trapezoid rule's relative error is below 2·exp(d²/2)·2^(order/2)/exp(2πd/step) < 1e-17.

    The integrand is analytic where |Im z| < πσ. At height d = πσ/2 or less the denominator's modulus is at least
    1/√2 of its value on the real line, the numerator's at most its value there, the normal density's exp(d²/2) times.
    """
    height = min(math.pi * noise_multiplier / 2, 2.0)
    return 2 * math.pi * height / (45 + 0.35 * order)


def _log_integral(log_integrand: Callable[[float], float], low: float, high: float, step: float) -> float:
    values = [log_integrand(low + index * step) for index in range(math.ceil((high - low) / step) + 1)]
    largest = max(values)
    return largest + math.log(step * math.fsum(math.exp(value - largest) for value in values))


def _log_cosh(x: float) -> float:
    x = abs(x)
    return math.log1p(2 * math.sinh(x / 2) ** 2) if x < 1 else x - math.log(2) + math.log1p(math.exp(-2 * x))
