"""Costs, budgets and spends as whole numbers and strings, exactly, for entries and receipts."""

from __future__ import annotations

from fractions import Fraction

from privacy.accounting.limits import BudgetLimits, Spend
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.canonical import Fields, as_whole, take_list, take_text, take_whole
from privacy.errors import InvalidTerms

_MOST_CHARACTERS = 200
MOST_FOREIGN = 10**50
"""A release whose terms can be said on the wire never costs a larger whole number (`device_sdk.wire.fields`)."""
_MOST_PARTS = 64


def check_name(text: str) -> None:
    """Raise `InvalidTerms` unless `text` can be shown on a terminal; it stays in the ledger for good."""
    if not text or len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise InvalidTerms(
            f"servers, purposes, mechanisms and reasons are 1 to {_MOST_CHARACTERS} printable characters; "
            "nothing was booked"
        )


def same_terms(one: PrivacyBudget, other: PrivacyBudget) -> bool:
    """Whether two budgets are divided alike, by default or in words."""
    return budget_fields(one) == budget_fields(other)


def cost_fields(cost: PrivacyCost) -> Fields:
    """A cost as whole numbers and strings, exactly."""
    sampled = cost.sampled
    ratios = [] if sampled is None else [Fraction(sampled.sampling_rate), Fraction(sampled.noise_multiplier)]
    steps = [] if sampled is None else [sampled.steps]
    return {
        "unit": cost.unit.value,
        "relation": cost.relation.value,
        "pure": list(cost.pure_micro_epsilon),
        "mu_squared": cost.mu_squared_nano,
        "rho": cost.rho_nano,
        "sampled": [part for ratio in ratios for part in ratio.as_integer_ratio()] + steps,
    }


def take_cost(fields: Fields, most: int | None = None) -> PrivacyCost:
    """The inverse of `cost_fields`; takes its fields out of `fields`.

    With `most`, a larger whole number in it, or more parts than any mechanism has, is a `ValueError`: for what another
    has written, who may want us to reckon for ever.
    """
    sampled = [as_whole(part) for part in take_list(fields, "sampled")]
    pure = [as_whole(part) for part in take_list(fields, "pure")]
    mu_squared, rho = take_whole(fields, "mu_squared"), take_whole(fields, "rho")
    if most is not None:
        _check_reckonable([*sampled, *pure, mu_squared, rho], most)
    return PrivacyCost(
        unit=PrivacyUnit(take_text(fields, "unit")),
        relation=NeighbouringRelation(take_text(fields, "relation")),
        pure_micro_epsilon=tuple(pure),
        mu_squared_nano=mu_squared,
        rho_nano=rho,
        sampled=_sampled(sampled) if sampled else None,
    )


def budget_fields(budget: PrivacyBudget) -> Fields:
    """A budget and how it is divided."""
    return {
        "epsilon": repr(float(budget.epsilon)),
        "delta": repr(float(budget.delta)),
        "training": budget.training.value,
        "relation": budget.relation.value,
        # Resolved, so that a later default cannot divide an old budget anew.
        "pure_epsilon": repr(float(budget.pure_share)),
        "renyi_epsilon": repr(float(budget.renyi_share)),
    }


def take_budget(fields: Fields) -> PrivacyBudget:
    """The inverse of `budget_fields`; takes its fields out of `fields`."""
    return PrivacyBudget(
        epsilon=float(take_text(fields, "epsilon")),
        delta=float(take_text(fields, "delta")),
        training=PrivacyUnit(take_text(fields, "training")),
        relation=NeighbouringRelation(take_text(fields, "relation")),
        pure_epsilon=float(take_text(fields, "pure_epsilon")),
        renyi_epsilon=float(take_text(fields, "renyi_epsilon")),
    )


def spend_list(spend: Spend | BudgetLimits) -> list[int]:
    """What is taken from each share, in the order of `Spend`."""
    return [spend.pure_micro_epsilon, spend.mu_squared_nano, spend.renyi_nano]


def _check_reckonable(numbers: list[int], most: int) -> None:
    if len(numbers) > _MOST_PARTS or max(numbers) > most:
        raise ValueError("a cost that no mechanism has")


def _sampled(parts: list[int]) -> SampledGaussian:
    rate, over, noise, below, steps = parts
    if not over or not below:
        raise ValueError("a ratio over zero")
    return SampledGaussian(Fraction(rate, over), Fraction(noise, below), steps)
