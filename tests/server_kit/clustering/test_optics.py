"""OPTICS over label histograms: groups are found, IID fleets stay whole, equal devices stay together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from server_kit import InvalidSetting
from server_kit.clustering import (
    AutomaticEps,
    Estimator,
    HistogramDistance,
    Optics,
    adjusted_rand_index,
    histogram_points,
)
from tests.server_kit.clustering.fleets import (
    generator,
    iid_counts,
    label_counts,
    same_partition,
    with_discrete_laplace,
)

EXACT_OR_AT_SCALE = pytest.mark.parametrize("exact_up_to", [5_000, 0], ids=["exact", "at scale"])
COUNTS = arrays(np.int64, st.tuples(st.integers(1, 25), st.integers(1, 4)), elements=st.integers(0, 9))


def clustered(counts, exact_up_to=5_000, **terms):
    embedded = histogram_points(counts, **terms)
    rule = AutomaticEps(resolution=embedded.resolution)
    return Optics(rule, exact_up_to=exact_up_to).cluster(embedded.points, generator())


@EXACT_OR_AT_SCALE
@pytest.mark.parametrize(("labels", "devices"), [(10, 50), (10, 600), (62, 600)])
def test_majority_labels_are_found_without_a_distance_being_given(labels, devices, exact_up_to):
    counts, truth = label_counts(devices, labels, records=500)
    assert same_partition(clustered(counts, exact_up_to).labels, truth)


@EXACT_OR_AT_SCALE
@pytest.mark.parametrize(("labels", "epsilon"), [(10, 0.1), (62, 0.1), (62, 0.05)])
def test_majority_labels_are_found_under_noise(labels, epsilon, exact_up_to):
    counts, truth = label_counts(600, labels, records=500)
    noised = with_discrete_laplace(counts, 1 / epsilon)
    found = clustered(noised, exact_up_to, noise_scale=1 / epsilon)
    assert adjusted_rand_index(found.labels, truth) > 0.95


def test_outliers_do_not_hide_the_groups_of_a_noised_fleet():
    counts, truth = label_counts(600, 62, records=500)
    embedded = histogram_points(with_discrete_laplace(counts, 20.0), noise_scale=20.0)
    found = Optics(AutomaticEps(resolution=embedded.resolution)).cluster(embedded.points, generator())
    jump = found.evidence.jump
    assert jump is not None
    assert jump.fewest_joined > 1
    # Looking at every length, the broken twin, sees no jump among the outliers.
    plain = AutomaticEps(devices_with_outliers=601, resolution=embedded.resolution)
    assert Optics(plain).cluster(embedded.points, generator()).count == 1
    assert adjusted_rand_index(found.labels, truth) > 0.95


def test_a_fixed_distance_of_a_quarter_destroys_the_62_label_case():
    counts, truth = label_counts(600, 62, records=500)
    points = histogram_points(counts, HistogramDistance.HELLINGER).points
    fixed = Optics(eps=0.25).cluster(points, generator())
    assert adjusted_rand_index(fixed.labels, truth) < 0.1
    assert adjusted_rand_index(clustered(counts).labels, truth) == 1.0


@EXACT_OR_AT_SCALE
@pytest.mark.parametrize("records", [20, 100, 1_000])
@pytest.mark.parametrize("labels", [10, 62])
@pytest.mark.parametrize("devices", [40, 400])
def test_an_iid_fleet_stays_together(devices, labels, records, exact_up_to):
    for seed in range(5):
        assert clustered(iid_counts(devices, labels, records, seed), exact_up_to).count == 1


def test_without_a_resolution_few_records_would_split_an_iid_fleet():
    counts = np.random.default_rng(0).multinomial(6, np.full(4, 0.25), size=400)
    assert Optics().cluster(histogram_points(counts).points, generator()).count > 10
    assert clustered(counts).count == 1


def test_without_the_ratio_every_iid_fleet_would_split():
    counts = iid_counts(400, 10, 100)
    eager = AutomaticEps(least_ratio=1.0001, resolution=histogram_points(counts).resolution)
    found = Optics(eager).cluster(histogram_points(counts).points, generator())
    jump = found.evidence.jump
    assert jump is not None
    assert jump.above < 1.5 * jump.below


def test_a_lone_outlier_does_not_make_two_groups():
    counts = np.concatenate([iid_counts(60, 10, 1_000), [[0] * 9 + [1_000]]])
    assert clustered(counts).count == 1


def test_a_rare_device_beside_two_groups_is_a_cluster_of_its_own():
    groups = [[700, 100, 200, 0], [690, 110, 200, 0], [0, 100, 200, 700], [0, 90, 205, 705], [0, 1_000, 0, 0]]
    assert clustered(np.array(groups)).labels.tolist() == [0, 0, 1, 1, 2]


@EXACT_OR_AT_SCALE
@settings(max_examples=50)
@given(counts=COUNTS, seed=st.integers(0, 99))
def test_another_order_of_devices_is_the_same_partition(exact_up_to, counts, seed):
    order = np.random.default_rng(seed).permutation(len(counts))
    assert same_partition(clustered(counts, exact_up_to).labels[order], clustered(counts[order], exact_up_to).labels)


@EXACT_OR_AT_SCALE
@settings(max_examples=50)
@given(counts=COUNTS, eps=st.sampled_from([None, 0.0, 0.1, 0.5]))
def test_equal_devices_are_never_split(exact_up_to, counts, eps):
    twice = histogram_points(np.concatenate([counts, counts])).points
    rule = AutomaticEps() if eps is None else eps
    found = Optics(rule, exact_up_to=exact_up_to).cluster(twice, generator()).labels
    np.testing.assert_array_equal(found[: len(counts)], found[len(counts) :])


@EXACT_OR_AT_SCALE
@pytest.mark.parametrize(
    ("counts", "clusters"),
    [
        ([[3, 4]], 1),
        ([[3], [9]], 1),
        ([[9, 0], [0, 9]], 1),
        ([[5, 5]] * 7, 1),
        ([[0, 0]] * 3, 1),
        ([[90, 10]] * 3 + [[10, 90]] * 3, 2),
        ([[90, 10]] * 3 + [[0, 0]] * 3, 2),
    ],
    ids=["one device", "one label", "two devices", "all equal", "all empty", "two kinds", "a kind without data"],
)
def test_small_fleets(counts, clusters, exact_up_to):
    assert clustered(np.array(counts), exact_up_to).count == clusters


def test_a_given_distance_separates_two_devices():
    points = histogram_points(np.array([[9, 0], [0, 9]])).points
    assert Optics(eps=0.4).cluster(points, generator()).labels.tolist() == [0, 1]
    assert Optics(eps=0.4).cluster(points, generator()).evidence.jump is None


def test_labels_count_from_zero_as_clusters_appear():
    points = torch.tensor([[5.0], [0.0], [5.1], [0.1], [9.0]])
    assert Optics(eps=0.5).cluster(points, generator()).labels.tolist() == [0, 1, 0, 1, 2]


def test_the_evidence_says_where_the_cut_was_made():
    counts, _ = label_counts(200, 10, records=500)
    found, at_scale = clustered(counts), clustered(counts, exact_up_to=0)
    jump = found.evidence.jump
    assert jump is not None
    assert jump.taken
    assert jump.below < found.evidence.eps < jump.above
    assert found.evidence.exact
    assert not at_scale.evidence.exact


def test_how_counts_were_denoised_is_recorded():
    counts = np.array([[3, -1], [5, 2]])
    assert histogram_points(counts, noise_scale=10.0).estimator is Estimator.POSTERIOR
    assert histogram_points(counts, noise_scale=10.0, estimator=Estimator.CLIP).estimator is Estimator.CLIP
    assert histogram_points(np.abs(counts)).estimator is None


def test_one_record_moves_a_device_by_the_resolution():
    before, after = np.array([[10, 10, 0]]), np.array([[9, 11, 0]])
    l2 = histogram_points(np.concatenate([before, after]))
    assert float(torch.linalg.vector_norm(l2.points[0] - l2.points[1])) == pytest.approx(l2.resolution, rel=1e-5)
    first, own_label = np.array([[20, 0]]), np.array([[19, 1]])
    hellinger = histogram_points(np.concatenate([first, own_label]), HistogramDistance.HELLINGER)
    moved = float(torch.linalg.vector_norm(hellinger.points[0] - hellinger.points[1]))
    assert moved <= hellinger.resolution <= 2 * moved


@pytest.mark.parametrize("terms", [{"eps": -0.1}, {"eps": math.nan}, {"neighbours": 0}, {"candidates": 0}])
def test_settings_that_make_no_sense_are_refused(terms):
    with pytest.raises(InvalidSetting):
        Optics(**terms)


@pytest.mark.parametrize("terms", [{"least_ratio": 1.0}, {"resolution": -1.0}, {"resolution": math.inf}])
def test_a_jump_needs_a_sensible_measure(terms):
    with pytest.raises(InvalidSetting):
        AutomaticEps(**terms)


def test_more_samples_at_scale_are_refused_rather_than_guessed():
    with pytest.raises(InvalidSetting, match="exact_up_to"):
        Optics(min_samples=5, exact_up_to=10).cluster(torch.zeros(11, 2), generator())
