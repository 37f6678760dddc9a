"""The exact plot and what is extracted from it, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import DBSCAN, OPTICS

from server_kit import InvalidSetting
from server_kit.clustering import AverageHellingerRows, EuclideanRows, Optics, reachability
from server_kit.clustering.partition import with_noise_as_singletons
from tests.server_kit.clustering.fleets import generator, same_partition


def scattered(devices=120, seed=0):
    """Three clouds and some strays: no two distances are equal."""
    rng = np.random.default_rng(seed)
    clouds = rng.normal(size=(3, 1, 4)) * 3 + rng.normal(size=(3, devices // 4, 4)) * 0.4
    return np.concatenate([*clouds, rng.uniform(-8, 8, size=(devices - 3 * (devices // 4), 4))])


@pytest.mark.parametrize("min_samples", [2, 3, 7])
def test_the_plot_is_scikit_learns(min_samples):
    points = scattered()
    ours, theirs = reachability(EuclideanRows(torch.from_numpy(points)), min_samples), OPTICS(min_samples=min_samples)
    theirs.fit(points)
    np.testing.assert_array_equal(ours.order, theirs.ordering_)
    np.testing.assert_allclose(ours.lengths, theirs.reachability_, rtol=1e-9)
    np.testing.assert_allclose(ours.core_distances, theirs.core_distances_, rtol=1e-9)
    np.testing.assert_array_equal(ours.predecessors, theirs.predecessor_)


@pytest.mark.parametrize("min_samples", [2, 5])
@pytest.mark.parametrize("eps", [0.1, 0.3, 0.6, 1.5, 40.0, np.inf])
def test_clusters_at_a_distance_are_scikit_learns(min_samples, eps):
    points = scattered(seed=1)
    found = Optics(eps, min_samples).cluster(torch.from_numpy(points), generator()).labels
    theirs = OPTICS(min_samples=min_samples, cluster_method="dbscan", eps=min(eps, 1e9)).fit(points)
    assert same_partition(found, with_noise_as_singletons(theirs.labels_))


@pytest.mark.parametrize("eps", [0.1, 0.3, 0.6, 1.5])
def test_with_two_samples_optics_is_dbscan(eps):
    points = scattered(seed=2)
    found = Optics(eps).cluster(torch.from_numpy(points), generator()).labels
    assert same_partition(found, with_noise_as_singletons(DBSCAN(eps=eps, min_samples=2).fit(points).labels_))


@pytest.mark.parametrize("min_samples", [2, 5])
def test_clusters_by_steepness_are_scikit_learns(min_samples):
    points = scattered(seed=3)
    plot = reachability(EuclideanRows(torch.from_numpy(points)), min_samples)
    theirs = OPTICS(min_samples=min_samples, xi=0.05).fit(points)
    assert same_partition(plot.clusters_by_steepness(0.05), with_noise_as_singletons(theirs.labels_))


def test_with_two_samples_the_plot_is_the_minimum_spanning_tree():
    points = scattered(seed=4)
    tree = reachability(EuclideanRows(torch.from_numpy(points))).tree()
    assert tree.exact
    assert tree.lengths.sum() == pytest.approx(minimum_spanning_tree(squareform(pdist(points))).sum())


def test_with_more_samples_the_plot_is_no_tree():
    with pytest.raises(InvalidSetting, match="min_samples"):
        reachability(EuclideanRows(torch.from_numpy(scattered())), 3).tree()


def test_any_distance_will_do():
    tables = torch.tensor([[[9, 1], [0, 0]], [[8, 2], [0, 0]], [[0, 0], [5, 5]], [[0, 0], [6, 5]]])
    assert Optics(eps=0.3).cluster_rows(AverageHellingerRows(tables)).labels.tolist() == [0, 0, 1, 1]


def test_too_few_devices_for_a_cluster_are_all_alone():
    plot = reachability(EuclideanRows(torch.zeros(3, 2)), min_samples=5)
    assert plot.clusters_at(1.0).tolist() == plot.clusters_by_steepness().tolist() == [0, 1, 2]


def test_equal_devices_have_a_steep_plot_and_no_warning():
    plot = reachability(EuclideanRows(torch.tensor([[0.0], [0.0], [0.0], [5.0], [5.0], [5.0]])))
    assert plot.clusters_at(0.0).tolist() == [0, 0, 0, 1, 1, 1]
    assert plot.clusters_by_steepness().max() >= 1


@pytest.mark.parametrize("min_samples", [-1, 0, 1])
def test_a_device_alone_is_no_company(min_samples):
    with pytest.raises(InvalidSetting, match="min_samples"):
        reachability(EuclideanRows(torch.zeros(3, 2)), min_samples)


@pytest.mark.parametrize("xi", [0.0, 1.0, 2.0])
def test_a_steepness_is_a_share(xi):
    with pytest.raises(InvalidSetting, match="xi"):
        reachability(EuclideanRows(torch.zeros(3, 2))).clusters_by_steepness(xi)
