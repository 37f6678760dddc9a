"""The same costs through other people's code: Google's dp-accounting, by privacy loss distributions (PLD).

A PLD is discretised, so it answers with a bracket: rounded down (`optimistic`) and up (`pessimistic`). Our figure
must not lie below the bracket, and an exact figure of ours must not lie above it by more than 1e-3.

Two things to know about dp-accounting 0.6. A discrete Laplace release must be entered as randomised response: as
a continuous Laplace it looks cheaper than it is. And its event accountant counts a self-composed randomised response
once, whatever the count, so the distributions are composed here directly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from privacy.accounting import epsilon_spent, is_exact
from privacy.accounting.limits import for_one_record
from privacy.budget import MICRO, NANO, NeighbouringRelation, PrivacyCost
from privacy.errors import InvalidTerms, MissingExtra

_INTERVAL_MICRO = 100
_LARGEST_DIFFERENCE = 1e-3
# FFT noise, and tails of 1e-15 that a PLD drops at each composition.
_NUMERICAL_NOISE = 1e-8


class Verdict(StrEnum):
    """What comparing two accountants says."""

    AGREES = "agrees"
    TOO_LOW = "ours is lower than the second opinion: it may understate the loss"
    DIFFERS = "ours is exact by construction, yet differs from the second opinion"


@dataclass(frozen=True)
class Bracket:
    """ε by discretised privacy losses: rounded down and rounded up."""

    optimistic: float
    pessimistic: float


@dataclass(frozen=True)
class Comparison:
    """Our ε, theirs, and what that means."""

    ours: float
    theirs: Bracket
    exact: bool
    verdict: Verdict


def compare(costs: Sequence[PrivacyCost], delta: float) -> Comparison:
    """Our ε at δ beside dp-accounting's."""
    return judge(epsilon_spent(costs, delta), second_opinion(costs, delta), exact=is_exact(costs))


def judge(ours: float, theirs: Bracket, *, exact: bool) -> Comparison:
    """Whether a claimed ε stands beside the second opinion."""
    verdict = Verdict.AGREES
    if ours < theirs.optimistic - _NUMERICAL_NOISE:
        verdict = Verdict.TOO_LOW
    elif exact and ours > theirs.pessimistic + _LARGEST_DIFFERENCE:
        verdict = Verdict.DIFFERS
    return Comparison(ours, theirs, exact, verdict)


def second_opinion(costs: Sequence[PrivacyCost], delta: float) -> Bracket:
    """ε at δ by dp-accounting; needs the extra `audit`."""
    if any(cost.rho_nano for cost in costs):
        raise InvalidTerms(
            "a zCDP cost has no privacy loss distribution, so there is no second opinion on it; nothing was computed"
        )
    if len({cost.unit for cost in costs}) > 1:
        costs = [for_one_record(cost) for cost in costs]
    low, high = (_composed(costs, pessimistic=side).get_epsilon_for_delta(delta) for side in (False, True))
    return Bracket(float(low), float(high))


def _composed(costs: Sequence[PrivacyCost], *, pessimistic: bool) -> Any:
    pld = _pld_module()
    interval = _INTERVAL_MICRO / MICRO
    whole = pld.identity(value_discretization_interval=interval, pessimistic_estimate=pessimistic)
    for part, count in Counter(part for cost in costs for part in cost.pure_micro_epsilon if part).items():
        whole = whole.compose(_randomised_response(part, pessimistic).self_compose(count))
    mu_squared = sum(cost.mu_squared_nano for cost in costs) / NANO
    if mu_squared:
        whole = whole.compose(_gaussian(1 / math.sqrt(mu_squared), pessimistic))
    for cost in costs:
        if cost.sampled:
            step = _gaussian(
                float(cost.sampled.noise_multiplier), pessimistic, float(cost.sampled.sampling_rate), cost.relation
            )
            whole = whole.compose(step.self_compose(cost.sampled.steps))
    return whole


def _randomised_response(micro_epsilon: int, pessimistic: bool) -> Any:
    """Losses +ε and −ε, moved to the grid upwards or downwards. Whole numbers: what lies on the grid stays there."""
    below, above = micro_epsilon // _INTERVAL_MICRO, -(-micro_epsilon // _INTERVAL_MICRO)
    points = (above, -below) if pessimistic else (below, -above)
    up = 1 / (1 + math.exp(-micro_epsilon / MICRO))
    return _pld_module().PrivacyLossDistribution.create_from_rounded_probability(
        dict(zip(points, (up, 1 - up), strict=True)), 0.0, _INTERVAL_MICRO / MICRO, pessimistic
    )


def _gaussian(
    deviation: float,
    pessimistic: bool,
    sampling_rate: float = 1.0,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
) -> Any:
    from dp_accounting import NeighboringRelation

    replaces = relation is NeighbouringRelation.REPLACE
    return _pld_module().from_gaussian_mechanism(
        deviation,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=_INTERVAL_MICRO / MICRO,
        sampling_prob=sampling_rate,
        use_connect_dots=pessimistic,  # the tighter construction exists for upper bounds only
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replaces else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _pld_module() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise MissingExtra(
            "a second opinion on ε needs dp-accounting, which is not installed; "
            "run pip install 'covey[audit]'; nothing was computed"
        ) from error
    return privacy_loss_distribution
