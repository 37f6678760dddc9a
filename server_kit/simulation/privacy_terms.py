"""Privacy in a simulated run: what each device may spend in all, and the noise that follows from it.

The noise of a simulation is seeded: it shows what privacy costs in accuracy, and protects nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from privacy.accounting import epsilon_spent
from privacy.accounting.planning import noise_for
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import PrivacyError
from server_kit.errors import InvalidSetting

if TYPE_CHECKING:
    from server_kit.local_task import LocalTask
    from server_kit.strategy import Strategy


@dataclass(frozen=True)
class PrivacyTerms:
    """A budget for each device: (`epsilon`, `delta`) for one record of it, or for all that it holds.

    The budget is planned for `participations` rounds, for the summaries that a strategy asks for, and for a
    choice between models in each round at `choice_epsilon` if it asks for those; then a device takes part no
    more. Record level: DP-SGD with Poisson batches. Device level: the update is clipped and noised as a whole.
    Losses are never told.
    """

    unit: Literal["record", "device"] = "record"
    epsilon: float = 8.0
    delta: float = 1e-6
    participations: int = 20
    clip_norm: float = 1.0
    relation: Literal["replace", "add_remove"] = "replace"
    choice_epsilon: float = 0.0

    def __post_init__(self) -> None:
        if self.participations < 1 or not self.clip_norm > 0 or not self.choice_epsilon >= 0:
            raise InvalidSetting(
                "privacy terms need a participation or more, a clip_norm above 0 and a choice_epsilon of 0 or more; "
                "nothing was started"
            )

    def plan(self, strategy: Strategy, task: LocalTask, fewest_records: int) -> SpendingPlan:
        """The noise with which a device that has `fewest_records` keeps its budget; others spend less."""
        wants = strategy.formation.wants
        choices = wants.choices or getattr(strategy.matcher, "asks_for_choices", False)
        summary = Fraction(str(wants.summary_epsilon))
        choice = Fraction(str(self.choice_epsilon)) if choices else Fraction(0)
        if choices and not choice:
            raise InvalidSetting(
                f"{strategy.name} asks devices to choose between models; give [privacy] a choice_epsilon above 0; "
                "nothing was started"
            )
        record = self.unit == "record"
        if summary and not record:
            raise InvalidSetting(
                f"{strategy.name} asks for histograms, which hide records and not devices; use unit = 'record' or "
                "another preset; nothing was started"
            )
        records = max(1, fewest_records)
        rate = Fraction(min(task.batch_size, records), records)
        steps = max(1, task.steps_for(records))
        try:
            planned = noise_for(
                str(self.epsilon),
                self.delta,
                self.participations,
                PrivacyUnit(self.unit),
                NeighbouringRelation(self.relation),
                histogram_epsilon=summary + choice * self.participations,
                sampling_rate=rate if record else None,
                steps_per_round=steps if record else None,
            )
        except PrivacyError as error:
            raise InvalidSetting(f"the privacy terms cannot be kept: {error}") from error
        return SpendingPlan(self, planned.noise_multiplier, summary, choice, rate, steps)


@dataclass(frozen=True)
class SpendingPlan:
    """What a round costs, and what it has cost."""

    terms: PrivacyTerms
    noise_multiplier: float
    summary_epsilon: Fraction
    choice_epsilon: Fraction
    sampling_rate: Fraction
    steps: int

    def private(self, task: LocalTask) -> LocalTask:
        """The task as devices do it under these terms."""
        # Halves would be releases of their own.
        whole = replace(task, halves=False)
        if self.terms.unit == "device":
            return whole
        clip_norm, noise = self.terms.clip_norm, self.noise_multiplier
        return replace(whole, clip_norm=clip_norm, noise_multiplier=noise, sampling="poisson")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each coordinate of an update, at device level."""
        return self.noise_multiplier * self.terms.clip_norm

    @lru_cache(maxsize=512)  # noqa: B019  # one plan for a run
    def spent(self, participations: int, summaries: int, choices: int) -> float:
        """The ε of a device that has done so much."""
        unit, relation = PrivacyUnit(self.terms.unit), NeighbouringRelation(self.terms.relation)
        costs = [PrivacyCost.pure(self.summary_epsilon, unit, relation, relation.changes)] * (
            summaries if self.summary_epsilon else 0
        )
        costs += [PrivacyCost.pure(self.choice_epsilon, unit, relation)] * (choices if self.choice_epsilon else 0)
        noise = Fraction(self.noise_multiplier).limit_denominator(10**6)
        if unit is PrivacyUnit.DEVICE:
            costs += [PrivacyCost.gaussian(relation.changes / noise, unit, relation)] * participations
        elif participations:
            sampled = SampledGaussian(self.sampling_rate, noise, self.steps * participations)
            costs.append(PrivacyCost(unit, relation, sampled=sampled))
        return epsilon_spent(costs, self.terms.delta) if costs else 0.0
