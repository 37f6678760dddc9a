"""Evidence for a split: free of training noise, unbiased, and silent where devices are alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from server_kit import InvalidSetting, InvalidSummary
from server_kit.clustering import UNLABELLED, KMeans, heterogeneity, permutation_z, rms_ratio
from tests.server_kit.clustering.fleets import generator

DEVICES, LENGTH = 40, 60


def half_sketches(between, noise=1.0, groups=4, devices=DEVICES, seed=0):
    """Two noisy looks at each device; devices differ by group, with a variance of `between` in all."""
    rng = generator(seed)
    truth = np.arange(devices) % groups
    centres = rng.normal(size=(groups, LENGTH)) * math.sqrt(between / LENGTH)
    halves = [torch.from_numpy(centres[truth] + noise * rng.normal(size=(devices, LENGTH))) for _ in range(2)]
    return *halves, truth


def j_by_definition(first, second, groups):
    total = 0.0
    for group in np.unique(groups):
        members = groups == group
        one, other = first[members] - first[members].mean(axis=0), second[members] - second[members].mean(axis=0)
        total += sum(a @ b for a, b in zip(one, other, strict=True))
    return total / (len(first) - len(np.unique(groups)))


def test_j_is_the_definition():
    first, second, truth = half_sketches(between=30.0)
    found = heterogeneity(first, second, truth)
    whole = np.zeros(DEVICES)
    assert found.before == pytest.approx(j_by_definition(first.numpy(), second.numpy(), whole))
    assert found.after == pytest.approx(j_by_definition(first.numpy(), second.numpy(), truth))
    halves = [j_by_definition(half.numpy(), half.numpy(), whole) for half in (first, second)]
    assert found.total == pytest.approx(np.mean(halves))


def averaged(between, labels_of, rounds=200):
    rounds_seen = [(*half_sketches(between, seed=seed)[:2], labels_of(seed)) for seed in range(rounds)]
    rows = [heterogeneity(first, second, labels) for first, second, labels in rounds_seen]
    return np.mean([(row.before, row.after, row.total) for row in rows], axis=0)


def test_training_noise_is_not_taken_for_difference():
    before, after, total = averaged(0.0, lambda seed: generator(seed).integers(2, size=DEVICES))
    assert abs(before) < 0.3
    assert abs(after) < 0.3
    # Auxo's measure, the broken twin, is all noise here.
    assert total == pytest.approx(LENGTH, rel=0.05)


def test_the_true_groups_explain_all_of_the_difference():
    before, after, _ = averaged(20.0, lambda _: np.arange(DEVICES) % 4)
    # Four drawn centres scatter about their own mean with ¾ of the variance they were drawn with.
    assert before == pytest.approx(20.0 * 3 / 4 * DEVICES / (DEVICES - 1), rel=0.1)
    assert abs(after) < 0.5


def test_labels_at_random_explain_nothing():
    before, after, _ = averaged(20.0, lambda seed: generator(seed).integers(4, size=DEVICES))
    assert after / before == pytest.approx(1.0, abs=0.05)


def test_a_divisor_without_the_lost_degrees_of_freedom_would_credit_random_labels():
    before, after, _ = averaged(20.0, lambda seed: generator(seed).integers(4, size=DEVICES))
    assert after * (DEVICES - 4) / DEVICES / before < 0.95


def test_the_ratio_means_nothing_without_difference():
    first, _, truth = half_sketches(between=0.0)
    found = heterogeneity(first, -first, truth)
    assert found.before < 0
    assert math.isnan(found.ratio)
    assert found.signal < 0


def test_signal_is_the_share_of_difference_in_everything():
    first, second, truth = half_sketches(between=60.0, noise=0.01)
    assert heterogeneity(first, second, truth).signal == pytest.approx(1.0, abs=0.02)
    equal = torch.ones(6, 3)
    assert heterogeneity(equal, equal, np.array([0, 0, 0, 1, 1, 1])).signal == 0.0


def z_of(between, seed):
    first, second, _ = half_sketches(between, seed=seed)
    labels = KMeans(4).cluster(first, generator(seed)).labels
    return permutation_z(second, labels, generator(seed))


def test_clusters_of_one_half_stand_out_on_the_other_only_if_devices_differ():
    assert min(z_of(40.0, seed) for seed in range(10)) > 3
    iid = [z_of(0.0, seed) for seed in range(40)]
    assert abs(np.mean(iid)) < 0.6
    assert max(iid) < 4


def test_testing_clusters_on_the_data_they_were_made_from_always_succeeds():
    first, _, _ = half_sketches(between=0.0)
    labels = KMeans(4).cluster(first, generator()).labels
    assert permutation_z(first, labels, generator()) > 5


def test_z_is_the_distance_from_shuffled_labels():
    _, second, truth = half_sketches(between=10.0)
    centred = second.numpy() - second.numpy().mean(axis=0)

    def between(labels):
        return sum((labels == g).sum() * np.sum(centred[labels == g].mean(axis=0) ** 2) for g in range(4))

    rng = generator(3)
    shuffled = [between(rng.permutation(truth)) for _ in range(200)]
    expected = (between(truth) - np.mean(shuffled)) / np.std(shuffled, ddof=1)
    assert permutation_z(second, truth, generator(3)) == pytest.approx(expected)


def test_equal_devices_have_no_z():
    assert permutation_z(torch.ones(8, 3), np.arange(8) % 2, generator()) == 0.0


def test_the_rms_ratio_is_auxos():
    points, _, truth = half_sketches(between=30.0)
    x = points.numpy()
    before = np.sqrt(np.mean(np.sum((x - x.mean(axis=0)) ** 2, axis=1)))
    means = np.stack([x[truth == g].mean(axis=0) for g in range(4)])
    after = np.sqrt(np.mean(np.sum((x - means[truth]) ** 2, axis=1)))
    assert rms_ratio(points, truth) == pytest.approx(after / before)


def test_the_rms_ratio_is_too_strict_in_many_dimensions_and_splits_noise_in_one():
    points, _, truth = half_sketches(between=20.0)
    assert rms_ratio(points, truth) > 0.707
    line = torch.from_numpy(generator().normal(size=(400, 1)))
    assert rms_ratio(line, KMeans(2).cluster(line, generator()).labels) < 0.707


def test_the_rms_ratio_of_equal_devices_asks_for_no_split():
    assert rms_ratio(torch.ones(6, 2), np.arange(6) % 2) == 1.0


def test_what_says_nothing_is_refused():
    with pytest.raises(InvalidSummary, match="wait for more"):
        heterogeneity(torch.eye(3), torch.eye(3), np.arange(3))
    with pytest.raises(InvalidSummary, match="shape"):
        heterogeneity(torch.eye(3), torch.eye(4)[:3], np.zeros(3, dtype=np.int64))
    with pytest.raises(InvalidSummary, match="unlabelled"):
        heterogeneity(torch.eye(3), torch.eye(3), np.array([0, 0, UNLABELLED]))
    with pytest.raises(InvalidSetting, match="permutations"):
        permutation_z(torch.eye(3), np.array([0, 0, 1]), generator(), permutations=1)
