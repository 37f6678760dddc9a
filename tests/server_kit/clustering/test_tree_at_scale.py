"""The spanning tree of many devices: it spans, its lengths are true, and it cuts like exact OPTICS."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist, squareform

from server_kit.clustering import (
    EuclideanRows,
    HistogramDistance,
    Optics,
    adjusted_rand_index,
    histogram_points,
    reachability,
    spanning_tree_at_scale,
)
from server_kit.clustering.cells import LARGEST_OVER_MEAN, make_cells
from server_kit.clustering.certain_edges import certain_edges, horizons
from server_kit.clustering.duplicates import confirmed, first_of_equals
from server_kit.clustering.neighbours import near_pairs
from server_kit.clustering.spanning_tree import Edges, components, measured, minimum_spanning_forest
from tests.server_kit.clustering.fleets import generator, label_counts, refines, same_partition

SMALL_POINTS = arrays(
    np.float64, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=st.integers(-4, 4).map(float)
)


def exact_tree(points):
    return reachability(EuclideanRows(points)).tree()


def is_a_tree(tree):
    spans = components(tree.devices, tree.edges.sources, tree.edges.targets).max(initial=0) == 0
    return spans and len(tree.edges) == tree.devices - 1


def clouds(count, each, seed=0, spread=0.05):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(count, 6))
    return torch.from_numpy(np.concatenate([centre + spread * rng.normal(size=(each, 6)) for centre in centres]))


@settings(max_examples=60)
@given(SMALL_POINTS)
def test_the_tree_spans_whatever_the_points(points):
    tree = spanning_tree_at_scale(torch.from_numpy(points), generator())
    assert is_a_tree(tree)


@settings(max_examples=60)
@given(SMALL_POINTS)
def test_every_length_is_true(points):
    tree = spanning_tree_at_scale(torch.from_numpy(points), generator())
    expected = np.linalg.norm(points[tree.edges.sources] - points[tree.edges.targets], axis=1)
    np.testing.assert_allclose(tree.lengths, expected, rtol=1e-12)


@settings(max_examples=60)
@given(SMALL_POINTS)
def test_few_points_have_the_exact_tree(points):
    tree, exact = spanning_tree_at_scale(torch.from_numpy(points), generator()), exact_tree(torch.from_numpy(points))
    np.testing.assert_allclose(np.sort(tree.lengths), np.sort(exact.lengths), atol=1e-12)


@pytest.mark.parametrize("labels", [10, 62])
@pytest.mark.parametrize("distance", HistogramDistance)
def test_it_cuts_like_exact_optics_at_every_distance(labels, distance):
    counts, _ = label_counts(1_200, labels, records=200)
    points = histogram_points(counts, distance).points
    tree, exact = spanning_tree_at_scale(points, generator()), exact_tree(points)
    for eps in np.quantile(exact.lengths, np.linspace(0.05, 0.999, 25)):
        assert adjusted_rand_index(tree.clusters_at(eps), exact.clusters_at(eps)) >= 0.99


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_even_a_poor_tree_never_mixes_what_optics_separates(monkeypatch, neighbours):
    monkeypatch.setattr("server_kit.clustering.neighbours.FEWEST_PROBES", 1)
    monkeypatch.setattr("server_kit.clustering.bridges.DISTANCES_PER_STEP", 1)
    monkeypatch.setattr("server_kit.clustering.bridges.FEWEST_PARTS_COMPARED", 1)
    points = clouds(8, 160, spread=0.3)
    tree, exact = spanning_tree_at_scale(points, generator(), neighbours, candidates=1), exact_tree(points)
    assert tree.lengths.sum() > exact.lengths.sum() * 1.001
    for eps in np.quantile(exact.lengths, np.linspace(0.01, 1, 30)):
        assert refines(tree.clusters_at(eps), exact.clusters_at(eps))


def test_a_tree_with_understated_lengths_would_mix_them():
    points = clouds(8, 60)
    tree, exact = spanning_tree_at_scale(points, generator()), exact_tree(points)
    eps = np.sort(exact.lengths)[-7] * 0.99  # just below the shortest way between two clouds
    understated = Edges(tree.edges.sources, tree.edges.targets, tree.lengths * 0.9)
    broken = components(
        tree.devices, *(side[understated.lengths <= eps] for side in (understated.sources, understated.targets))
    )
    assert not refines(broken, exact.clusters_at(eps))


def test_dense_clouds_that_list_only_themselves_are_bridged_at_their_nearest_points():
    # Every neighbour list stays within its cloud, so the neighbour graph alone is in pieces.
    points = clouds(12, 100, spread=0.01)
    forest = minimum_spanning_forest(len(points), measured(points, brute_pairs(points, 8)))
    assert len(forest) < len(points) - 1
    tree = spanning_tree_at_scale(points, generator())
    assert is_a_tree(tree)
    assert tree.lengths.sum() == pytest.approx(exact_tree(points).lengths.sum(), rel=1e-6)


def brute_pairs(points, neighbours):
    nearest = np.argsort(squareform(pdist(points.numpy())), axis=1)[:, 1 : neighbours + 1]
    return np.stack([np.repeat(np.arange(len(points)), neighbours), nearest.ravel()], axis=1)


def a_way_round():
    """Two dense crowds side by side, connected in the neighbour graph only by a chain that leads round."""
    rng = np.random.default_rng(0)
    crowds = [np.array([[x, 0.0]]) + 0.01 * rng.normal(size=(12, 2)) for x in (0.0, 1.0)]
    chain = np.array([[0.0, 1.2], [0.0, 2.4], [1.0, 2.4], [1.0, 1.2]])
    return torch.from_numpy(np.concatenate([*crowds, chain]))


def test_a_long_way_round_is_not_taken_for_the_shortest():
    points = a_way_round()
    near = measured(points, brute_pairs(points, 4))
    graph = minimum_spanning_forest(len(points), near)
    exact = exact_tree(points)
    # The tree of the graph alone, the broken twin, connects everything and separates the crowds all the same.
    assert len(graph) == len(points) - 1
    assert graph.lengths.sum() > exact.lengths.sum() + 0.1
    certain = certain_edges(len(points), graph, horizons(len(points), near))
    assert set(np.round(certain.lengths, 12)) <= set(np.round(exact.lengths, 12))
    assert spanning_tree_at_scale(points, generator(), neighbours=4).lengths.sum() == pytest.approx(exact.lengths.sum())


@settings(max_examples=80)
@given(SMALL_POINTS)
def test_equal_rows_are_found(points):
    first = first_of_equals(torch.from_numpy(points))
    expected = [next(i for i, row in enumerate(points) if (row == other).all()) for other in points]
    assert first.tolist() == expected


def test_rows_that_only_share_a_hash_are_told_apart():
    points = torch.tensor([[1.0], [2.0], [1.0], [2.0], [3.0]])
    assert confirmed(points, np.zeros(5, dtype=np.int64)).tolist() == [0, 1, 0, 1, 4]


def test_zero_and_minus_zero_are_equal():
    assert first_of_equals(torch.tensor([[0.0], [-0.0]])).tolist() == [0, 0]


def test_most_nearest_neighbours_are_found():
    counts, _ = label_counts(3_000, 62, records=200)
    points = histogram_points(counts).points
    pairs = near_pairs(make_cells(points - points.mean(dim=0), generator()), neighbours=8, candidates=1_000)
    lengths = measured(points, pairs).lengths
    found = np.full(len(points), np.inf)
    np.minimum.at(found, pairs[:, 0], lengths)
    truth = cKDTree(points.double().numpy()).query(points.double().numpy(), k=2)[0][:, 1]
    assert (found <= truth + 1e-6).mean() > 0.9
    assert (found >= truth - 1e-6).all()


def test_a_crowd_does_not_make_a_large_cell():
    rng = np.random.default_rng(0)
    crowd = 1e-4 * rng.normal(size=(4_000, 3))
    points = torch.from_numpy(np.concatenate([crowd, rng.normal(size=(1_000, 3)) * 5])).float()
    cells = make_cells(points, generator())
    assert np.diff(cells.bounds).max() <= LARGEST_OVER_MEAN * 5_000 / min(2 * 5_000**0.5, 5_000 // 64) + 1
    assert sorted(cells.order) == list(range(5_000))


def test_the_same_seed_gives_the_same_tree():
    points = clouds(10, 80)
    first, second = (spanning_tree_at_scale(points, generator(3)) for _ in range(2))
    np.testing.assert_array_equal(first.edges.sources, second.edges.sources)
    np.testing.assert_array_equal(first.lengths, second.lengths)


def test_devices_in_another_order_have_the_same_clusters():
    points = clouds(10, 80)
    order = generator(1).permutation(len(points))
    straight = Optics(exact_up_to=0).cluster(points, generator()).labels
    shuffled = Optics(exact_up_to=0).cluster(points[torch.from_numpy(order)], generator()).labels
    assert same_partition(straight[order], shuffled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_the_origin_the_clusters_are_the_same(dtype):
    points = clouds(6, 40).to(dtype)
    near = Optics(exact_up_to=0).cluster(points, generator())
    far = Optics(exact_up_to=0).cluster(points + 100, generator())
    assert near.count == far.count == 6
    assert same_partition(near.labels, far.labels)
