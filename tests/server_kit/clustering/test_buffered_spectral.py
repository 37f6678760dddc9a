"""CASA's split: the eigengap counts the groups, an IID cohort stays whole, stale updates are not compared."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import laplacian
from sklearn.cluster import SpectralClustering

from server_kit import InvalidSetting, InvalidSummary
from server_kit.clustering import (
    Buffered,
    SpectralSplit,
    affinity,
    comparable_updates,
    normalised_laplacian,
    stable,
)
from tests.server_kit.clustering.fleets import generator, grouped_updates, same_partition


def iid_updates(members=30, length=200, seed=0, common=0.5):
    rng = generator(seed)
    return torch.from_numpy(common * rng.normal(size=length) + rng.normal(size=(members, length)))


def test_affinities_are_cosines_without_the_opposed():
    found = affinity(torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]))
    np.testing.assert_allclose(found, [[0, 0.5**0.5, 0], [0.5**0.5, 0, 0], [0, 0, 0]], atol=1e-12)


def test_the_laplacian_is_scipys():
    similarity = affinity(iid_updates())
    np.testing.assert_allclose(normalised_laplacian(similarity), laplacian(similarity.numpy(), normed=True), atol=1e-12)


def test_a_member_like_no_other_is_a_component_of_its_own():
    values = torch.linalg.eigvalsh(normalised_laplacian(torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]])))
    assert (values.abs() < 1e-12).sum() == 2


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_the_eigengap_counts_the_groups(groups):
    updates, truth = grouped_updates(groups, 10, 300, noise=0.02)
    found = SpectralSplit().cluster(affinity(updates), generator())
    assert found.evidence.clusters == groups
    assert same_partition(found.labels, truth)
    assert found.evidence.gap > 0.5


def test_the_split_is_scikit_learns():
    updates, _ = grouped_updates(3, 12, 60, noise=0.12, seed=2)
    similarity = affinity(updates)
    found = SpectralSplit().cluster(similarity, generator())
    theirs = SpectralClustering(3, affinity="precomputed", random_state=0).fit(similarity.numpy() + 1e-12)
    assert found.count == 3
    assert same_partition(found.labels, theirs.labels_)


@pytest.mark.parametrize("common", [0.0, 0.1, 1.0, 10.0])
def test_an_iid_cohort_does_not_split(common):
    for seed in range(10):
        found = SpectralSplit().cluster(affinity(iid_updates(seed=seed, common=common)), generator())
        assert found.count == found.evidence.clusters == 1


def test_the_largest_eigenvalues_would_split_every_cohort():
    # The broken twin reads the gaps from the wrong end of the spectrum.
    values = torch.linalg.eigvalsh(normalised_laplacian(affinity(iid_updates()))).flip(0)
    assert int(values[:9].diff().abs().argmax()) + 1 != 1


def test_raw_models_never_split_where_updates_do():
    updates, truth = grouped_updates(2, 10, 300, noise=0.02)
    models = 50 * torch.from_numpy(generator(1).normal(size=300)) + updates
    assert SpectralSplit().cluster(affinity(models), generator()).count == 1
    assert same_partition(SpectralSplit().cluster(affinity(updates), generator()).labels, truth)


def test_a_child_is_never_smaller_than_allowed():
    updates, _ = grouped_updates(2, 10, 300, noise=0.02)
    lone = torch.cat([updates[:10], -updates[:1]])
    found = SpectralSplit(min_members=3).cluster(affinity(lone), generator())
    assert found.count == 1 or found.sizes.min() >= 3


def test_a_refused_split_says_why():
    similarity = torch.block_diag(torch.ones(7, 7), torch.ones(2, 2)).fill_diagonal_(0.0)
    found = SpectralSplit(min_members=3).cluster(similarity, generator())
    assert found.count == 1
    assert "fewer than 3" in found.evidence.refused


@pytest.mark.parametrize("members", [1, 2, 5])
def test_too_few_members_stay_together(members):
    found = SpectralSplit(min_members=3).cluster(affinity(iid_updates(members)), generator())
    assert found.labels.tolist() == [0] * members
    assert found.evidence.refused == "too few members"


def test_equal_members_are_never_split():
    assert SpectralSplit().cluster(affinity(torch.ones(12, 5)), generator()).count == 1


def test_members_in_another_order_have_the_same_children():
    updates, _ = grouped_updates(3, 10, 300, noise=0.1)
    order = generator(2).permutation(30)
    straight = SpectralSplit().cluster(affinity(updates), generator()).labels
    shuffled = SpectralSplit().cluster(affinity(updates[torch.from_numpy(order)]), generator()).labels
    assert same_partition(straight[order], shuffled)


def test_each_member_contributes_the_update_nearest_to_the_slowest_members_newest():
    def entries(*versions):
        return [Buffered(version, torch.tensor([float(version)])) for version in versions]

    # The slowest member's newest version is 4; of 3 and 5, equally near, the newer is taken.
    rows = comparable_updates([entries(1, 4), entries(3, 5, 9), entries(6, 8), entries(2, 4, 20)])
    assert rows.flatten().tolist() == [4.0, 5.0, 6.0, 4.0]


def test_the_newest_update_of_everyone_would_compare_what_is_not_comparable():
    """With training far along, updates from late versions point elsewhere than early ones, whatever the group."""
    updates, truth = grouped_updates(2, 10, 300, noise=0.05)
    drift = torch.from_numpy(generator(3).normal(size=300)) * 2
    fast = generator(4).random(20) < 0.5
    buffers = [
        [Buffered(0, update), Buffered(50, update + drift)] if quick else [Buffered(0, update)]
        for update, quick in zip(updates, fast, strict=True)
    ]
    newest = torch.stack([buffer[-1].update for buffer in buffers])
    assert same_partition(SpectralSplit().cluster(affinity(comparable_updates(buffers)), generator()).labels, truth)
    assert not same_partition(SpectralSplit().cluster(affinity(newest), generator()).labels, truth)


def test_a_member_without_an_update_is_waited_for():
    with pytest.raises(InvalidSummary, match="wait"):
        comparable_updates([[Buffered(1, torch.zeros(2))], []])


def test_stability_asks_for_the_same_story_twice():
    updates, _ = grouped_updates(2, 10, 300, noise=0.05)
    other, _ = grouped_updates(2, 10, 300, noise=0.05, seed=9)
    again = updates + 0.05 * torch.from_numpy(generator(6).normal(size=(20, 300)))
    first, second, foreign = (SpectralSplit().cluster(affinity(u), generator()) for u in (updates, again, other))
    assert stable(first, second)
    assert not stable(first, foreign)


def test_a_split_waits_until_models_are_steadier_than_the_gap_is_wide():
    updates, _ = grouped_updates(2, 10, 300, noise=0.02)
    evidence = SpectralSplit().cluster(affinity(updates), generator()).evidence
    assert evidence.outweighs(mixing_rate=0.6)
    assert not evidence.outweighs(mixing_rate=1.0)
    narrow = dataclasses.replace(evidence, gap=0.5)
    assert [narrow.outweighs(rate, exponent) for rate, exponent in ((0.4, 1), (0.6, 1), (0.4, 2))] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "similarity", [torch.zeros(2, 3), torch.full((2, 2), -1.0), torch.full((2, 2), torch.nan), torch.zeros(0, 0)]
)
def test_what_is_no_similarity_is_refused(similarity):
    with pytest.raises(InvalidSummary, match="similarit"):
        SpectralSplit().cluster(similarity, generator())


def test_nothing_cannot_be_asked_for():
    with pytest.raises(InvalidSetting):
        SpectralSplit(min_members=0)
