"""The exact (ε, δ) of pure releases composed with Gaussians, from the standard library alone.

A pure ε-DP release is never more revealing than randomised response at ε, whose privacy loss is +ε or −ε;
Gaussians compose into one Gaussian of μ² = Σμᵢ². The loss of the whole is the sum, hence

    δ(ε) = Σₛ P(s) · δ_G(ε − Σᵢ sᵢεᵢ; μ),    δ_G(x; μ) = Φ(μ/2 − x/μ) − eˣ Φ(−μ/2 − x/μ).

This is an equality for randomised response, the discrete Laplace at sensitivity 1, and the Gaussian.
Losses are whole micro-ε, so equal parts collapse into a binomial. Too many different ones are moved onto
a coarser grid in a way that can only raise δ; every ε returned is the upper end of its bracket.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from privacy.budget import MICRO
from privacy.errors import InvalidTerms

_ROOT_HALF = math.sqrt(0.5)
_MOST_LOSSES = 8192
# Double precision leaves δ (down to 1e-20) with a relative error below 1e-9; asking for that much less covers it.
_NUMERICAL_MARGIN = 1e-9
_EPSILON_TOLERANCE = 1e-10


def delta_of(epsilon: float, pure_micro_epsilons: Sequence[int], mu_squared: float) -> float:
    """The least δ at which the pure parts and one Gaussian of `mu_squared` are (ε, δ)-DP together."""
    _check_parts(pure_micro_epsilons, mu_squared)
    return _delta(epsilon, _loss_distribution(pure_micro_epsilons), math.sqrt(mu_squared))


def epsilon_of(delta: float, pure_micro_epsilons: Sequence[int], mu_squared: float) -> float:
    """The least ε ≥ 0 at which they are (ε, δ)-DP together, from above."""
    _check_parts(pure_micro_epsilons, mu_squared)
    if not 0 <= delta < 1:
        raise InvalidTerms(f"δ lies in [0, 1), got {delta!r}; nothing was computed")
    basic = sum(pure_micro_epsilons) / MICRO
    if delta == 0:
        return basic if mu_squared == 0 else math.inf
    losses, mu = _loss_distribution(pure_micro_epsilons), math.sqrt(mu_squared)
    target = delta * (1 - _NUMERICAL_MARGIN)
    low = 0.0
    # At this ε the Gaussian alone spends at most δ, by the tail bound Φ(−t) ≤ exp(−t²/2).
    high = basic + mu_squared / 2 + mu * math.sqrt(-2 * math.log(target))
    if _delta(low, losses, mu) <= target:
        return low
    while high - low > _EPSILON_TOLERANCE * max(1.0, high):
        middle = (low + high) / 2
        if _delta(middle, losses, mu) <= target:
            high = middle
        else:
            low = middle
    return high


def gaussian_delta(epsilon: float, mu: float) -> float:
    """δ of one μ-GDP release at ε (Balle and Wang 2018), to full relative precision in the far tail."""
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * gaussian_delta(-epsilon, mu)
    if mu == 0:
        return 0.0
    near = (epsilon / mu - mu / 2) * _ROOT_HALF
    far = (epsilon / mu + mu / 2) * _ROOT_HALF
    # eᵋ·erfc(far) = exp(−near²)·erfcx(far): the factor e^ε, which may overflow, cancels.
    if near < 0:
        return (math.erfc(near) - math.exp(-near * near) * _scaled_erfc(far)) / 2
    return math.exp(-near * near) * (_scaled_erfc(near) - _scaled_erfc(far)) / 2


def _scaled_erfc(x: float) -> float:
    """exp(x²)·erfc(x) for x ≥ 0."""
    if x < 25:
        return math.exp(x * x) * math.erfc(x)
    term = total = 1.0
    for odd in (1, 3, 5, 7, 9):
        term *= -odd / (2 * x * x)
        total += term
    return total / (x * math.sqrt(math.pi))


def _delta(epsilon: float, losses: dict[int, float], mu: float) -> float:
    return sum(mass * gaussian_delta(epsilon - loss / MICRO, mu) for loss, mass in losses.items())


def _loss_distribution(parts: Sequence[int]) -> dict[int, float]:
    """How probable each total loss of the pure parts is, in micro-ε."""
    losses = {0: 1.0}
    for part, count in sorted(Counter(filter(None, parts)).items()):
        group = _equal_parts(part, count)
        sums: dict[int, float] = {}
        for loss, mass in losses.items():
            for added, its_mass in group.items():
                sums[loss + added] = sums.get(loss + added, 0.0) + mass * its_mass
        losses = sums if len(sums) <= _MOST_LOSSES else _coarsened(sums, _MOST_LOSSES // 2)
    return losses


def _equal_parts(part: int, count: int) -> dict[int, float]:
    """`count` releases of `part` micro-ε each: a binomial number of losses +part, the others −part."""
    log_up = -math.log1p(math.exp(-part / MICRO))
    log_down = log_up - part / MICRO
    losses: dict[int, float] = {}
    for ups in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(ups + 1) - math.lgamma(count - ups + 1)
        mass = math.exp(ways + ups * log_up + (count - ups) * log_down)
        losses[(2 * ups - count) * part] = losses.get((2 * ups - count) * part, 0.0) + mass
    return losses


def _coarsened(losses: dict[int, float], most: int) -> dict[int, float]:
    """The same losses on a grid of about `most` points, never less revealing.

    A loss between two grid points is split over both so that its mass stays the same in either world.
    Whoever sees the split can merge it again, so the original is a post-processing of what we return.
    """
    unit = -(-(max(losses) - min(losses)) // most)
    coarse: dict[int, float] = {}
    for loss, mass in losses.items():
        below = loss - loss % unit
        above_share = math.expm1((below - loss) / MICRO) / math.expm1(-unit / MICRO)
        for point, share in ((below, 1 - above_share), (below + unit, above_share)):
            if share > 0:
                coarse[point] = coarse.get(point, 0.0) + mass * share
    return coarse


def _check_parts(pure_micro_epsilons: Sequence[int], mu_squared: float) -> None:
    if any(part < 0 for part in pure_micro_epsilons) or not 0 <= mu_squared < math.inf:
        raise InvalidTerms("pure parts and μ² are finite and not negative; nothing was computed")
