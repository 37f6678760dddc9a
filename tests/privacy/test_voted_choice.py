"""A choice by votes: as often told as the proof says, and never more than e^ε apart for one record's change."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from privacy.budget import NeighbouringRelation, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.mechanisms import VotedChoice
from privacy.randomness import NoiseSource, SeededSource

REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE


def oracle(counts: tuple[int, ...], exponent: float) -> list[float]:
    """Permute-and-flip, written out: over all orders, everyone before is refused and this one is taken."""
    heads = [math.exp(-exponent * (max(counts) - count)) for count in counts]
    told = [0.0] * len(counts)
    orders = list(itertools.permutations(range(len(counts))))
    for order in orders:
        refused = 1.0
        for choice in order:
            told[choice] += refused * heads[choice] / len(orders)
            refused *= 1 - heads[choice]
    return told


def neighbours(counts: tuple[int, ...], relation: NeighbouringRelation) -> list[tuple[int, ...]]:
    more = [tuple(count + (place == added) for place, count in enumerate(counts)) for added in range(len(counts))]
    if relation is ADD_REMOVE:
        return more
    less = [
        tuple(count - (place == taken) for place, count in enumerate(each))
        for each in more
        for taken in range(len(counts))
        if each[taken]
    ]
    return [each for each in less if each != counts]


def worst_ratio(relation: NeighbouringRelation, exponent: float) -> float:
    """The greatest ratio of two probabilities over all neighbours with few votes, either way round."""
    return max(
        max(first / second, second / first)
        for counts in itertools.product(range(5), repeat=3)
        for other in neighbours(counts, relation)
        for first, second in zip(oracle(counts, exponent), oracle(other, exponent), strict=True)
    )


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_record_changes_no_probability_by_more_than_its_epsilon(relation, epsilon):
    assert worst_ratio(relation, epsilon / relation.changes) <= math.exp(epsilon) * (1 + 1e-12)


def test_with_the_exponent_of_add_remove_a_replaced_record_would_show():
    assert worst_ratio(REPLACE, 1.0) > math.exp(1.0)


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("counts", [(3, 1, 0), (2, 2, 1), (0, 0, 0)])
def test_choices_are_told_as_often_as_the_proof_says(relation, counts):
    mechanism = VotedChoice(3, 1, relation)
    noise = NoiseSource(SeededSource(f"votes {counts} {relation}"))
    votes = [choice for choice, count in enumerate(counts) for _ in range(count)]
    drawn = Counter(mechanism.decode(mechanism.answer(votes, noise).payload) for _ in range(4000))
    for choice, chance in enumerate(oracle(counts, 1 / relation.changes)):
        assert drawn[choice] / 4000 == pytest.approx(chance, abs=5 * math.sqrt(0.25 / 4000))


def test_a_clear_majority_of_many_records_is_all_but_always_told():
    mechanism, noise = VotedChoice(4, 1), NoiseSource(SeededSource("many"))
    votes = [0] * 30 + [1] * 60 + [2] * 5 + [3] * 5
    assert {mechanism.decode(mechanism.answer(votes, noise).payload) for _ in range(200)} == {1}


def test_it_costs_epsilon_for_a_record():
    cost = VotedChoice(4, "0.5").cost
    assert cost.unit is PrivacyUnit.RECORD
    assert sum(cost.pure_micro_epsilon) == 500_000


def test_terms_that_mean_nothing_are_refused():
    with pytest.raises(InvalidTerms, match=r"num_choices .* got 1;"):
        VotedChoice(1, 1)
    with pytest.raises(InvalidTerms, match="sequence"):
        VotedChoice(2, 1).check(1)  # type: ignore[arg-type]
