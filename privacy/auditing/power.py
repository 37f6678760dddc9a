"""How large a fault an audit would have noticed: the figure without which "nothing found" means nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

from privacy.auditing.bounds import gaussian_mu_bound, guessing_bound, scipy_special

POWER = 0.95
_MOST_MU = 20.0


def detectable_epsilon(claimed: float, guesses: int, alpha: float) -> float:
    """The least true ε that `guesses` guesses show to exceed `claimed` with probability 0.95; ∞ if none."""
    needed = _least(lambda right: guessing_bound(right, guesses, alpha) > claimed, guesses)
    if needed is None:
        return math.inf
    # The rate at which `needed` or more guesses are right with probability POWER
    rate = float(scipy_special().betaincinv(needed, guesses - needed + 1, POWER))
    return math.log(rate) - math.log1p(-rate)


def detectable_mu(claimed: float, runs: int, alpha: float) -> float:
    """The least true μ that `runs` runs of either world show to exceed `claimed` with probability 0.95; ∞ if none."""
    special = scipy_special()

    def is_seen(mu: float) -> bool:
        rate = special.ndtr(-mu / 2)
        # Both error counts stay within this quantile of theirs with probability POWER.
        errors = _least(lambda count: special.bdtr(count, runs, rate) >= math.sqrt(POWER), runs)
        return errors is not None and gaussian_mu_bound(errors, runs, errors, runs, alpha=alpha) > claimed

    if not is_seen(_MOST_MU):
        return math.inf
    low, high = claimed, _MOST_MU
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if is_seen(middle) else (middle, high)
    return high


def _least(holds: Callable[[int], bool], most: int) -> int | None:
    """The least whole number from 0 to `most` for which `holds`, which stays true once it is."""
    if most < 0 or not holds(most):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
