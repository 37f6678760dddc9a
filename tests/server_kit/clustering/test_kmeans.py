"""K-means, against scikit-learn from the same start, and what becomes of empty clusters and equal points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans as TheirKMeans

from server_kit import InvalidSetting
from server_kit.clustering import KMeans
from server_kit.clustering.kmeans import lloyd, means_of, nearest_centre, spread_centres
from tests.server_kit.clustering.fleets import generator, grouped_updates, same_partition

POINTS = arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 3)), elements=st.integers(-5, 5).map(float))


def cloud(count=60, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 3)))


def test_lloyd_is_scikit_learns_from_the_same_start():
    points = cloud()
    theirs = TheirKMeans(4, init=points[:4].numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(
        points.numpy()
    )
    centres = lloyd(points, points[:4], iterations=300)
    np.testing.assert_allclose(centres, theirs.cluster_centers_, atol=1e-9)
    assert nearest_centre(points, centres)[0].tolist() == theirs.labels_.tolist()


def test_it_is_as_tight_as_scikit_learns():
    points, truth = grouped_updates(6, 20, 10, noise=0.1)
    found = KMeans(6, restarts=10).cluster(points, generator())
    theirs = TheirKMeans(6, n_init=10, random_state=0).fit(points.numpy())
    assert found.evidence.inertia == pytest.approx(theirs.inertia_)
    assert same_partition(found.labels, truth)


@settings(max_examples=60)
@given(points=POINTS, clusters=st.integers(1, 6))
def test_everyone_is_with_the_nearest_centre_and_no_cluster_is_empty(points, clusters):
    found = KMeans(clusters, iterations=100).cluster(torch.from_numpy(points), generator())
    assert found.sizes.min() >= 1
    assert found.count <= min(clusters, len(np.unique(points, axis=0)))
    apart = np.linalg.norm(points[:, None] - found.evidence.centres.numpy()[None], axis=2)
    np.testing.assert_allclose(apart[np.arange(len(points)), found.labels], apart.min(axis=1), atol=1e-9)


@settings(max_examples=60)
@given(points=POINTS, clusters=st.integers(1, 6))
def test_equal_points_are_never_split(points, clusters):
    found = KMeans(clusters).cluster(torch.from_numpy(np.concatenate([points, points])), generator())
    np.testing.assert_array_equal(found.labels[: len(points)], found.labels[len(points) :])


def test_an_empty_cluster_starts_again_at_the_farthest_point():
    points = torch.tensor([[0.0], [1.0], [2.0], [50.0]])
    # Both centres start beyond the points on the left, so the second one has no points at all.
    centres = lloyd(points, torch.tensor([[-1.0], [-900.0]]), iterations=10)
    assert sorted(centres.flatten().tolist()) == [1.0, 50.0]


def test_a_kept_empty_centre_would_waste_a_cluster():
    points = torch.tensor([[0.0], [1.0], [2.0], [50.0]])
    centres = torch.tensor([[-1.0], [-900.0]])
    for _ in range(10):
        centres = means_of(points, nearest_centre(points, centres)[0], centres)
    assert -900.0 in centres.flatten().tolist()


def test_first_centres_are_spread():
    points = torch.cat([torch.zeros(500, 1), torch.ones(1, 1) * 100])
    for seed in range(20):
        assert set(spread_centres(points, 2, generator(seed)).flatten().tolist()) == {0.0, 100.0}


def test_the_same_seed_gives_the_same_clusters():
    first, second = (KMeans(5).cluster(cloud(), generator(4)).labels for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_far_from_the_origin_float32_still_sees_the_clusters():
    points = torch.tensor([[0.0], [1.0], [4.0], [5.0]]) + 30_000
    assert KMeans(2).cluster(points, generator()).labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("terms", [{"clusters": 0}, {"clusters": 2, "iterations": 0}, {"clusters": 2, "restarts": 0}])
def test_nothing_cannot_be_asked_for(terms):
    with pytest.raises(InvalidSetting):
        KMeans(**terms)
