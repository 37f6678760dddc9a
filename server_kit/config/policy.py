"""[policy]: the federation's promise to each of its devices, and how far the privacy terms get within it.

The promise is a budget of the same form as a device's own: part of ε pays for answers (histograms, choices, scores),
the rest for training. What is counted here is what a device's ledger would book.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.accounting import BudgetLimits, spend_of
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyUnit
from privacy.errors import BudgetExhausted, InvalidTerms
from server_kit.config.checking import require
from server_kit.errors import InvalidSetting, PolicyExceeded

if TYPE_CHECKING:
    from privacy.budget import PrivacyCost
    from server_kit.config.server_config import ServerConfig
    from server_kit.strategy import Strategy

_ENDLESS = 10**9


@dataclass(frozen=True)
class Policy:
    """[policy]: what this federation may cost a device in all."""

    epsilon: float = 8.0
    delta: float = 1e-6
    pure_epsilon: float | None = None
    """The part of ε for answers; by default a quarter, as on devices."""

    def __post_init__(self) -> None:
        try:
            PrivacyBudget(self.epsilon, self.delta, pure_epsilon=self.pure_epsilon)
        except InvalidTerms as error:
            raise InvalidSetting(str(error).replace("no ledger was made", "nothing was started")) from error

    def budget(self, unit: PrivacyUnit, relation: NeighbouringRelation) -> PrivacyBudget:
        """The promise as a device's budget would state it."""
        return PrivacyBudget(self.epsilon, self.delta, unit, relation, self.pure_epsilon)


@dataclass(frozen=True)
class Allowance:
    """What a device may do within the promise."""

    rounds: int
    """In how many rounds it may train."""
    answers: int
    """How many questions it may answer beside the histogram; those of the dearer kind."""
    histogram: bool
    """Whether it is asked for one."""
    protects: PrivacyUnit
    """Whom the promise is about: a histogram hides records, so with one it is about records."""


def check_policy(config: ServerConfig, strategy: Strategy | None = None) -> Allowance:
    """What the privacy terms leave room for; `PolicyExceeded` if not even one round."""
    strategy = strategy or config.federation.strategy(config.privacy.level)
    privacy = config.privacy
    _check_level(config)
    wants = strategy.formation.wants
    limits = promised(config)
    rounds = _fit(privacy.round_cost(config.training), limits)
    if rounds < 1:
        raise _exceeded(config, "one round", "more noise")
    asked_once = bool(wants.summary_epsilon)
    spent = sum(privacy.histogram_cost().pure_micro_epsilon) if asked_once else 0
    if asked_once:
        _check_histogram(config, wants.summary_epsilon)
    if spent > limits.pure_micro_epsilon:
        raise _exceeded(config, "the histogram", "a lower histogram.epsilon or a higher pure_epsilon")
    answers, asked = _answers(config, strategy, limits.pure_micro_epsilon - spent)
    if asked and answers < 1:
        raise _exceeded(config, "one answer", "a lower choice_epsilon or a higher pure_epsilon")
    return Allowance(rounds, answers, asked_once, PrivacyUnit.RECORD if asked_once else privacy.unit)


def promised(config: ServerConfig) -> BudgetLimits:
    """What the releases of one device to this federation may sum to."""
    privacy = config.privacy
    return BudgetLimits.of(config.policy.budget(privacy.unit, NeighbouringRelation(privacy.relation.value)))


def _check_level(config: ServerConfig) -> None:
    steps_needed = config.privacy.level == "record" and config.training.steps is None
    require(not steps_needed, "[privacy] level 'record' needs [training] steps, because DP-SGD has no epochs")


def _check_histogram(config: ServerConfig, summary_epsilon: float) -> None:
    """The server corrects histograms for their noise, so it must know it."""
    told = config.privacy.histogram.epsilon
    require(
        float(told) == summary_epsilon,
        f"[privacy] histogram.epsilon is {told}, but the preset {config.federation.preset} reckons with "
        f"{summary_epsilon:g}; make them equal, in [privacy] or in [federation] overrides",
    )


def _answers(config: ServerConfig, strategy: Strategy, room_micro_epsilon: int) -> tuple[int, bool]:
    """How many answers there is room for, and whether any is ever asked for."""
    choices = strategy.formation.wants.choices or getattr(strategy.matcher, "asks_for_choices", False)
    scores = strategy.reports_loss or (config.evaluation.validation is None and config.evaluation.every > 0)
    costs = [config.privacy.choice_cost()] * choices + [config.privacy.evaluation_cost()] * scores
    dearest = max((sum(cost.pure_micro_epsilon) for cost in costs), default=0)
    return (room_micro_epsilon // dearest, True) if dearest else (0, False)


def _fit(cost: PrivacyCost, limits: BudgetLimits) -> int:
    """How many releases of this cost the limits hold."""
    try:
        each = spend_of(cost, limits)
    except BudgetExhausted:
        return 0
    shares = [
        (each.pure_micro_epsilon, limits.pure_micro_epsilon),
        (each.mu_squared_nano, limits.mu_squared_nano),
        (each.renyi_nano, limits.renyi_nano),
    ]
    return min((limit // part for part, limit in shares if part), default=_ENDLESS)


def _exceeded(config: ServerConfig, what: str, remedy: str) -> PolicyExceeded:
    promised = f"ε={config.policy.epsilon:g}, δ={config.policy.delta:g}"
    return PolicyExceeded(
        f"{what} under [privacy] costs a device more than [policy] promises ({promised}); "
        f"set {remedy}; nothing was started"
    )
