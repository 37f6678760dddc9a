"""What releases cost together: the ε at δ of a list of costs, and how it is shown.

`epsilon_spent` is the figure for a *fixed* sequence of releases, for reports and audits. It must not decide
whether to go on: a server that chooses its next question after seeing the last answer may only be stopped by
limits fixed beforehand, `BudgetLimits` (privacy.accounting.limits). No rate at which a server selects devices enters
anywhere: the server knows whom it selected.

A total over releases of both units is a promise about one record (`privacy.accounting.limits.for_one_record`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from privacy.accounting import renyi
from privacy.accounting.closed_form import epsilon_of
from privacy.accounting.limits import for_one_record
from privacy.budget import MICRO, NANO, NeighbouringRelation, PrivacyCost, rounded_up
from privacy.errors import InvalidTerms

_SHOWN_PER_UNIT = 100_000
# Google's PLD accountant, the second opinion, errs upwards by up to 1e-6 at its default grid.
_SHOWN_MARGIN = 2e-6


def epsilon_spent(costs: Sequence[PrivacyCost], delta: float) -> float:
    """The ε at δ of these costs together: exact for pure and Gaussian ones, else the least of several upper bounds."""
    if not 0 < delta < 1:
        raise InvalidTerms(f"ε is stated at a δ between 0 and 1, got {delta!r}; nothing was computed")
    if len({cost.relation for cost in costs}) > 1:
        raise InvalidTerms(
            "these costs count under different neighbouring relations, which hides a factor of two; "
            "account for each relation on its own; nothing was computed"
        )
    if len({cost.unit for cost in costs}) > 1:
        costs = [for_one_record(cost) for cost in costs]
    pure = [part for cost in costs for part in cost.pure_micro_epsilon]
    mu_squared = sum(cost.mu_squared_nano for cost in costs) / NANO
    if is_exact(costs):
        return epsilon_of(delta, pure, mu_squared)
    return min(
        renyi.best_epsilon(_divergence(costs), delta),
        *(_split_epsilon(costs, pure, mu_squared, delta, share) for share in (0.1, 0.5, 0.9, 0.99, 1.0)),
    )


def is_exact(costs: Sequence[PrivacyCost]) -> bool:
    """Whether `epsilon_spent` of these costs is an equality rather than an upper bound."""
    return all(cost.rho_nano == 0 and cost.sampled is None for cost in costs)


def shown_epsilon(epsilon: float, at_most: float = math.inf) -> float:
    """ε as we print it: rounded up to five decimals, and never below what Google's PLD accountant says.

    `at_most` is a bound that holds anyway, such as the ε of the ledger that admitted every cost.
    """
    return min(at_most, math.ceil((epsilon + _SHOWN_MARGIN) * _SHOWN_PER_UNIT) / _SHOWN_PER_UNIT)


def _split_epsilon(
    costs: Sequence[PrivacyCost], pure: Sequence[int], mu_squared: float, delta: float, share: float
) -> float:
    """A `share` of δ turns the zCDP and DP-SGD costs into one (ε_R, δ_R) release, which composes in the closed form."""
    inexact = [cost for cost in costs if not is_exact([cost])]
    epsilon = renyi.best_epsilon(_divergence(inexact, only_inexact=True), delta * share)
    return epsilon_of(delta - delta * share, [*pure, rounded_up(epsilon, MICRO)], mu_squared)


def _divergence(costs: Sequence[PrivacyCost], *, only_inexact: bool = False) -> Callable[[float], float]:
    """The Rényi divergence of the costs together, by order."""
    pure = Counter(part for cost in costs for part in cost.pure_micro_epsilon if not only_inexact)
    mu_squared = sum(cost.mu_squared_nano for cost in costs if not only_inexact) / NANO
    rho = sum(cost.rho_nano for cost in costs) / NANO
    steps: Counter[tuple[float, float, NeighbouringRelation]] = Counter()
    for cost in costs:
        if cost.sampled:
            rate, noise = float(cost.sampled.sampling_rate), float(cost.sampled.noise_multiplier)
            steps[rate, noise, cost.relation] += cost.sampled.steps

    def divergence(order: float) -> float:
        return math.fsum(
            [
                *(count * renyi.of_pure(part / MICRO, order) for part, count in pure.items()),
                renyi.of_gaussian(mu_squared, order),
                renyi.of_zcdp(rho, order),
                *(
                    count * renyi.of_sampled_gaussian(q, s, order, relation)
                    for (q, s, relation), count in steps.items()
                ),
            ]
        )

    return divergence
