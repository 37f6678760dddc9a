"""Agreement of partitions, against scikit-learn and against counting by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from server_kit import InvalidSummary
from server_kit.clustering import adjusted_rand_index, purity

PARTITIONS = st.integers(1, 25).flatmap(
    lambda count: st.tuples(*(st.lists(st.integers(0, 4), min_size=count, max_size=count),) * 2)
)


def purity_by_counting(found, truth):
    clusters = {cluster: [t for f, t in zip(found, truth, strict=True) if f == cluster] for cluster in found}
    return sum(max(members.count(group) for group in members) for members in clusters.values()) / len(found)


@given(PARTITIONS)
def test_adjusted_rand_index_is_scikit_learns(partitions):
    first, second = map(np.array, partitions)
    assert adjusted_rand_index(first, second) == pytest.approx(adjusted_rand_score(first, second))


@given(PARTITIONS)
def test_purity_counts_the_commonest_group(partitions):
    found, truth = partitions
    assert purity(np.array(found), np.array(truth)) == pytest.approx(purity_by_counting(found, truth))


def test_agreement_does_not_depend_on_names():
    labels = np.array([0, 0, 1, 1, 2])
    for names in itertools.permutations(range(3)):
        assert adjusted_rand_index(labels, np.array(names)[labels]) == 1.0


def test_unrelated_partitions_agree_by_chance_only():
    rng = np.random.default_rng(0)
    first, second = rng.integers(5, size=(2, 20_000))
    assert abs(adjusted_rand_index(first, second)) < 0.01
    # The plain share of agreeing pairs, the broken twin, is far from zero for the same partitions.
    pairs = rng.integers(20_000, size=(20_000, 2))
    agree = (first[pairs[:, 0]] == first[pairs[:, 1]]) == (second[pairs[:, 0]] == second[pairs[:, 1]])
    assert agree.mean() > 0.5


def test_a_million_singletons_need_no_table_of_all_pairs():
    alone = np.arange(1_000_000)
    assert adjusted_rand_index(alone, alone) == 1.0
    assert purity(alone, np.zeros(1_000_000, dtype=np.int64)) == 1.0


def test_partitions_of_different_fleets_are_refused():
    with pytest.raises(InvalidSummary, match="two partitions"):
        adjusted_rand_index(np.zeros(3, dtype=np.int64), np.zeros(4, dtype=np.int64))
