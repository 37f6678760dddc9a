"""Which guard stands before a preset's own rule in a daemon, and how much it holds.

    trimmed_mean, coordinate_median   for rules that take a mean of three updates or more: FedAvg, FedYogi, FedBuff
    norm_bound                        for all: no update is longer than an honest device's, by the terms alone

Where one update makes a model (FedAsync, CASA) there is nothing to compare it with, and a rule that weighs updates by
what devices say of themselves (q-FedAvg) is no mean of them: there "auto" is the norm bound. A median or a trimmed mean
gets bounded updates too. Simulations choose for themselves; a published preset is not changed.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from server_kit.aggregation import Guarded, NormBound
from server_kit.aggregation.robust import wants_a_mean
from server_kit.config.checking import require
from server_kit.honest_lengths import Descent, Noised, device_level, record_level
from server_kit.objectives import SparseMasked

if TYPE_CHECKING:
    from server_kit.config import Aggregation, ServerConfig
    from server_kit.strategy import Strategy

Guard = Literal["trimmed_mean", "coordinate_median", "norm_bound", "none"]
FEWEST_FOR_A_CENTRE = 3
"""Of two updates nobody can say which is false."""


def guard_of(settings: Aggregation, strategy: Strategy, participants: int) -> Guard:
    """The guard that these settings come to; refused where the preset cannot have it."""
    obstacle = _obstacle(strategy, participants)
    if settings.guard == "auto":
        return "norm_bound" if obstacle else "trimmed_mean"
    if settings.guard in {"trimmed_mean", "coordinate_median"}:
        require(
            obstacle is None, f"[aggregation] guard {settings.guard!r} is not possible: {obstacle}; use 'norm_bound'"
        )
    return settings.guard


def guarded(strategy: Strategy, config: ServerConfig, size: int) -> Strategy:
    """The strategy with the guard that the settings ask for, for a model of so many coordinates."""
    guard = guard_of(config.aggregation, strategy, config.federation.participants)
    if guard == "none":
        return strategy
    rule = strategy.aggregator
    if guard != "norm_bound":
        rule = Guarded(rule, guard, config.aggregation.trim)
    return replace(strategy, aggregator=NormBound(rule, usual_length(config, strategy, size)))


def usual_length(config: ServerConfig, strategy: Strategy, size: int) -> float:
    """What an honest device that holds the records which the terms were made for does not exceed."""
    privacy, training = config.privacy, config.training
    noised = Noised(size, _number(privacy.clip_norm), _number(privacy.noise_multiplier), privacy.grid_step(training))
    if privacy.level == "device":
        return device_level(noised)
    descent = Descent(
        training.steps or 0,
        _number(privacy.expected_batch_size),
        _number(privacy.sampling_rate),
        training.learning_rate,
        training.momentum,
        getattr(strategy.objective, "mu", 0.0),
    )
    return record_level(noised, descent)


def _obstacle(strategy: Strategy, participants: int) -> str | None:
    """Why no robust centre can stand for the updates."""
    rule = type(strategy.aggregator).__name__
    folded = participants if strategy.buffer is None else strategy.buffer
    if folded < FEWEST_FOR_A_CENTRE:
        return f"a model is made of {folded} updates, and of fewer than three nobody can say which is false"
    if not wants_a_mean(strategy.aggregator):
        return f"{rule} wants more of its updates than their mean"
    if isinstance(strategy.objective, SparseMasked):
        return "devices train different weights, so that a coordinate has no value from each"
    return None


def _number(exact: str | float) -> float:
    return float(Fraction(str(exact)))
