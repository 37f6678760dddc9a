"""Lower bounds on the ε that a mechanism really spends, from counts of right and wrong guesses.

Each bound is wrong (above the truth) with probability at most `alpha`, whatever the mechanism does.
It needs independent runs and a rule of guessing that was fixed before these runs were made. A lower
bound can show that a mechanism spends more than it claims; it can never show that it does not.

    guessing_bound      pure ε: a fair coin hid which of two neighbours was used, or which canaries were in
    gaussian_mu_bound   μ of a Gaussian mechanism, from the two error rates of one test
    two_world_bound     (ε, δ) of anything, from the two error rates of one test
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from privacy.errors import InvalidTerms, MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

_LARGEST_EPSILON = 60.0  # e^60 is beyond what any number of runs can show
_TOLERANCE = 1e-9


def scipy_special() -> ModuleType:
    """SciPy's special functions, which only the auditor needs."""
    try:
        special = importlib.import_module("scipy.special")
    except ImportError as error:
        raise MissingExtra(
            "an empirical audit needs SciPy; install it with pip install 'covey[audit]'; nothing was run"
        ) from error
    return special


def rate_at_least(hits: int, runs: int, alpha: float) -> float:
    """The rate that `hits` of `runs` shows at least (Clopper and Pearson 1934, one-sided)."""
    _check_counts(hits, runs, alpha)
    if hits == 0:
        return 0.0
    return float(scipy_special().betaincinv(hits, runs - hits + 1, alpha))


def rate_at_most(hits: int, runs: int, alpha: float) -> float:
    """The rate that `hits` of `runs` shows at most."""
    return 1.0 - rate_at_least(runs - hits, runs, alpha)


def guessing_bound(right: int, guesses: int, alpha: float, canaries: int = 0, delta: float = 0.0) -> float:
    """The ε that `right` of `guesses` about fair coins needs at least (Steinke, Nasr, Jagielski 2023).

    Under ε-DP a guess is right with probability at most e^ε/(1+e^ε), given all the others; abstaining is
    free. `canaries` is the number of coins that one release hid, guessed or not; it counts if δ > 0.
    """
    _check_counts(right, guesses, alpha)
    if delta == 0.0:
        rate = rate_at_least(right, guesses, alpha)
        return 0.0 if rate <= 0.5 else min(_LARGEST_EPSILON, math.log(rate) - math.log1p(-rate))
    if canaries < guesses:
        raise InvalidTerms(f"{guesses} guesses about {canaries} canaries make no sense; nothing was computed")
    return _largest(lambda epsilon: guessing_p_value(right, guesses, epsilon, canaries, delta) < alpha)


def guessing_p_value(right: int, guesses: int, epsilon: float, canaries: int, delta: float) -> float:
    """How probable `right` or more right guesses are at most, if the release is (ε, δ)-DP."""
    import numpy as np

    tail = scipy_special().bdtrc  # bdtrc(k, n, p) = P[Bin(n, p) > k]
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    reached = float(tail(right - 1, guesses, rate)) if right else 1.0
    if right == 0 or delta == 0.0:
        return reached
    fewer = np.arange(1, right + 1)
    # P[right − i ≤ Bin < right] / i, the most that i wrong guesses turned right by δ can add
    near = tail(right - fewer - 1.0, guesses, rate) - reached
    return min(1.0, reached + 2 * canaries * delta * float(np.max(near / fewer)))


def gaussian_mu_bound(false_alarms: int, without: int, misses: int, present: int, *, alpha: float) -> float:
    """The μ that a test with these two error rates needs at least, under μ-Gaussian DP (Nasr et al. 2023)."""
    inverse = scipy_special().ndtri
    false_alarm_rate = rate_at_most(false_alarms, without, alpha / 2)
    miss_rate = rate_at_most(misses, present, alpha / 2)
    if max(false_alarm_rate, miss_rate) >= 1.0:
        return 0.0
    return max(0.0, float(-inverse(false_alarm_rate) - inverse(miss_rate)))


def two_world_bound(
    hits: int, present: int, false_alarms: int, without: int, *, alpha: float, delta: float = 0.0
) -> float:
    """The ε that a test needs at least, at this δ: `hits` of `present` runs, `false_alarms` of `without`.

    All four ratios that (ε, δ)-DP limits are tried: of the event and of its complement, each either way.
    Together they use four one-sided limits of rates, so each limit gets a quarter of `alpha`.
    """
    share = alpha / 4
    hit_low, hit_high = rate_at_least(hits, present, share), rate_at_most(hits, present, share)
    alarm_low, alarm_high = rate_at_least(false_alarms, without, share), rate_at_most(false_alarms, without, share)
    ratios = (
        (hit_low - delta, alarm_high),
        (alarm_low - delta, hit_high),
        (1 - alarm_high - delta, 1 - hit_low),
        (1 - hit_high - delta, 1 - alarm_low),
    )
    return max([0.0, *(math.log(above / below) for above, below in ratios if above > 0)])


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest ε from 0 up to which `holds` is true, from below."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _check_counts(hits: int, runs: int, alpha: float) -> None:
    if not 0 <= hits <= runs or runs < 0:
        raise InvalidTerms(f"{hits} of {runs} is not a count of runs; nothing was computed")
    if not 0 < alpha < 1:
        raise InvalidTerms(f"alpha lies between 0 and 1, got {alpha!r}; nothing was computed")
