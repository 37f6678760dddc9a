"""Privacy in a simulated run: what each device may spend in all, and the noise that follows from it.

The noise of a simulation is seeded: it shows what privacy costs in accuracy, and protects nobody.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from device_sdk.wire.messages import ChoiceBy
from privacy.accounting import epsilon_spent
from privacy.accounting.planning import noise_for
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import PrivacyError
from server_kit.errors import InvalidSetting

if TYPE_CHECKING:
    from server_kit.local_task import LocalTask
    from server_kit.strategy import Strategy


_LOOKED_AT = 8  # numbers of records that are planned for


@dataclass(frozen=True)
class PrivacyTerms:
    """A budget for each device: (`epsilon`, `delta`) for one record of it, or for all that it holds.

    The budget is planned for `participations` rounds, for the summaries that a strategy asks for, and for a
    choice between models in each round, or for `choices` of them, at `choice_epsilon` each if it asks for those;
    then a device takes part no more. Record level: DP-SGD with Poisson batches. Device level: the update is clipped
    and noised as a whole. Losses are never told. `choice_by` "response" hides a device's choice as a whole; "votes"
    gives each record a vote, which hides records and is seldom wrong: the default where records are hidden.
    """

    unit: Literal["record", "device"] = "record"
    epsilon: float = 8.0
    delta: float = 1e-6
    participations: int = 20
    clip_norm: float = 1.0
    relation: Literal["replace", "add_remove"] = "replace"
    choice_epsilon: float = 0.0
    choices: int | None = None
    choice_by: Literal["response", "votes"] | None = None

    @property
    def most_choices(self) -> int:
        return self.participations if self.choices is None else self.choices

    def __post_init__(self) -> None:
        if self.participations < 1 or not self.clip_norm > 0 or not self.choice_epsilon >= 0:
            raise InvalidSetting(
                "privacy terms need a participation or more, a clip_norm above 0 and a choice_epsilon of 0 or more; "
                "nothing was started"
            )

        if self.choice_by == "votes" and self.unit == "device":
            raise InvalidSetting("votes hide records and not devices; use choice_by = 'response'; nothing was started")

    @property
    def chosen_by(self) -> ChoiceBy:
        """How a choice is told."""
        votes = self.unit == "record" if self.choice_by is None else self.choice_by == "votes"
        return ChoiceBy.VOTES if votes else ChoiceBy.RESPONSE

    def plan(self, strategy: Strategy, task: LocalTask, records: Collection[int]) -> SpendingPlan:
        """The noise with which devices of all these numbers of records keep their budget."""
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
        plans = [
            SpendingPlan(self, self._noise(summary + choice * self.most_choices, *work), summary, choice, *work)
            for work in (costliest(task, records) if record else [(Fraction(1), 1)])
        ]
        return max(plans, key=lambda plan: plan.noise_multiplier)

    def _noise(self, histogram_epsilon: Fraction, rate: Fraction, steps: int) -> float:
        record = self.unit == "record"
        try:
            return noise_for(
                str(self.epsilon),
                self.delta,
                self.participations,
                PrivacyUnit(self.unit),
                NeighbouringRelation(self.relation),
                histogram_epsilon=histogram_epsilon,
                sampling_rate=rate if record else None,
                steps_per_round=steps if record else None,
            ).noise_multiplier
        except PrivacyError as error:
            raise InvalidSetting(f"the privacy terms cannot be kept: {error}") from error


def costliest(task: LocalTask, records: Collection[int]) -> list[tuple[Fraction, int]]:
    """Sampling rate and steps of a round, of the devices whose round may cost most.

    That is about rate²·steps, and not a matter of having few records: 10 of them in batches of 10 are one step,
    11 are two with hardly a lower rate. What comes near the most is looked at more closely.
    """
    work = {(Fraction(min(task.batch_size, n), n), max(1, task.steps_for(n))) for n in {max(1, n) for n in records}}
    ranked = sorted(work, key=lambda each: each[0] ** 2 * each[1], reverse=True)
    most = ranked[0][0] ** 2 * ranked[0][1]
    return [each for each in ranked if each[0] ** 2 * each[1] >= most / 2][:_LOOKED_AT]


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
        costs = []
        if self.summary_epsilon:
            costs += [PrivacyCost.pure(self.summary_epsilon, unit, relation, relation.changes)] * summaries
        if self.choice_epsilon:
            costs += [PrivacyCost.pure(self.choice_epsilon, unit, relation)] * choices
        noise = Fraction(self.noise_multiplier).limit_denominator(10**6)
        if unit is PrivacyUnit.DEVICE:
            costs += [PrivacyCost.gaussian(relation.changes / noise, unit, relation)] * participations
        elif participations:
            sampled = SampledGaussian(self.sampling_rate, noise, self.steps * participations)
            costs.append(PrivacyCost(unit, relation, sampled=sampled))
        return epsilon_spent(costs, self.terms.delta) if costs else 0.0
