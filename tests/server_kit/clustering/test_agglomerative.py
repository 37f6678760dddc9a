"""Bottom-up clustering is scikit-learn's, and CFL cuts only what has converged and still pulls apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering

from server_kit import InvalidSetting
from server_kit.clustering import CflCriterion, HierarchicalClustering, bipartition, cosine_similarity
from tests.server_kit.clustering.fleets import generator, grouped_updates, same_partition


def random_updates(count=25, length=8, seed=0):
    return torch.from_numpy(generator(seed).normal(size=(count, length)))


@pytest.mark.parametrize("seed", range(5))
def test_the_bipartition_is_scikit_learns_complete_linkage(seed):
    updates = random_updates(seed=seed)
    theirs = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    theirs.fit(-cosine_similarity(updates).numpy())
    assert same_partition(bipartition(updates).labels, theirs.labels_)


def test_cross_similarity_is_that_of_the_most_alike_across():
    updates = random_updates()
    found = bipartition(updates)
    similarity = cosine_similarity(updates)
    across = [float(similarity[i, j]) for i in found.members(0) for j in found.members(1)]
    assert found.evidence.cross_similarity == pytest.approx(max(across))


def test_opposed_groups_separate_and_one_group_does_not():
    updates, truth = grouped_updates(1, 10, 50, noise=0.01)
    opposed = torch.cat([updates, -updates])
    found = bipartition(opposed)
    assert same_partition(found.labels, np.concatenate([truth, truth + 1]))
    assert found.evidence.separates(gamma_max=0.7)
    assert not bipartition(updates).evidence.separates(gamma_max=0.7)


def test_with_the_wrong_sign_everything_would_separate():
    updates, _ = grouped_updates(1, 10, 50, noise=0.01)
    alike = bipartition(updates).evidence.cross_similarity
    assert math.sqrt((1 - alike) / 2) < 0.7 < math.sqrt((1 + alike) / 2)


@pytest.mark.parametrize("updates", [torch.ones(1, 3), torch.ones(6, 3)], ids=["one device", "equal devices"])
def test_nothing_to_cut_is_not_cut(updates):
    found = bipartition(updates)
    assert found.count == 1
    assert not found.evidence.separates(gamma_max=0.01)


def test_labels_go_by_row_whatever_the_order():
    updates = random_updates()
    order = generator(3).permutation(len(updates))
    assert same_partition(bipartition(updates).labels[order], bipartition(updates[torch.from_numpy(order)]).labels)


def test_cfl_waits_until_the_mean_is_still_and_single_devices_pull():
    pulling = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 0.1]])
    criterion = CflCriterion(mean_norm_below=0.4, largest_norm_above=1.6)
    assert criterion.holds(pulling, round_number=21)
    assert not criterion.holds(pulling, round_number=20)
    assert not criterion.holds(pulling[:2], round_number=21)
    assert not criterion.holds(pulling / 2, round_number=21)
    assert not criterion.holds(pulling + torch.tensor([1.0, 0.0]), round_number=21)


@pytest.mark.parametrize(
    ("metric", "linkage"),
    [("l1", "complete"), ("l1", "average"), ("l2", "ward"), ("l2", "average"), ("cosine", "complete")],
)
@pytest.mark.parametrize("clusters", [1, 2, 5])
def test_a_number_of_clusters_is_scikit_learns(metric, linkage, clusters):
    updates = random_updates(seed=7)
    theirs = AgglomerativeClustering(clusters, metric={"l2": "euclidean"}.get(metric, metric), linkage=linkage)
    theirs.fit(updates.numpy())
    found = HierarchicalClustering(metric, linkage, clusters=clusters).cluster(updates)
    assert same_partition(found.labels, theirs.labels_)


@pytest.mark.parametrize("threshold", [1.0, 3.0, 6.0, 100.0])
def test_a_distance_is_scikit_learns(threshold):
    updates = random_updates(seed=8)
    theirs = AgglomerativeClustering(None, distance_threshold=threshold, linkage="ward").fit(updates.numpy())
    found = HierarchicalClustering(distance_threshold=threshold).cluster(updates)
    assert same_partition(found.labels, theirs.labels_)
    np.testing.assert_allclose(found.evidence.merge_heights, theirs.distances_, rtol=1e-6)


def test_centres_are_the_means():
    updates, truth = grouped_updates(3, 8, 40, noise=0.05)
    found = HierarchicalClustering(clusters=3).cluster(updates)
    assert same_partition(found.labels, truth)
    torch.testing.assert_close(found.evidence.centres[1], updates[found.members(1)].mean(dim=0))


def test_one_device_is_one_cluster():
    found = HierarchicalClustering(distance_threshold=0.1).cluster(torch.ones(1, 3))
    assert found.labels.tolist() == [0]
    assert found.evidence.centres.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("linkage", ["average", "complete", "ward"])
def test_equal_devices_are_never_split(linkage):
    updates = random_updates(6)
    found = HierarchicalClustering("l2", linkage, clusters=5).cluster(torch.cat([updates, updates])).labels
    np.testing.assert_array_equal(found[:6], found[6:])


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"clusters": 2, "distance_threshold": 1.0},
        {"clusters": 0},
        {"distance_threshold": -1.0},
        {"clusters": 2, "metric": "l7"},
        {"clusters": 2, "linkage": "none"},
        {"clusters": 2, "metric": "cosine", "linkage": "ward"},
    ],
)
def test_settings_that_make_no_sense_are_refused(terms):
    with pytest.raises(InvalidSetting):
        HierarchicalClustering(**terms)
