"""Estimators of noised counts, against Bayes' rule by hand, and how well neighbours are found with each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from server_kit import InvalidSetting, InvalidSummary
from server_kit.clustering import (
    Estimator,
    PosteriorRoots,
    UnbiasedCosineRows,
    denoised,
    estimator_for,
    hellinger_points,
)
from tests.server_kit.clustering.fleets import label_counts, with_discrete_laplace

NOISED = arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.integers(-20, 60))


def posterior_root_by_definition(noised, scale, zero, largest):
    counts = np.arange(largest + 1)
    prior = np.where(counts == 0, 0, 1 / (counts + 5))
    prior = (1 - zero) * prior / prior.sum() + zero * (counts == 0)
    weights = prior * np.exp(-np.abs(noised - counts) / scale)
    return (weights * np.sqrt(counts)).sum() / weights.sum()


@pytest.mark.parametrize("scale", [0.3, 2.0, 30.0])
def test_the_posterior_is_that_of_bayes(scale):
    noised = [-9, -1, 0, 1, 7, 40, 200, 260]
    roots = PosteriorRoots(scale, largest=200).of(torch.tensor([noised]))
    expected = [posterior_root_by_definition(z, scale, 0.6, 200) for z in noised]
    np.testing.assert_allclose(roots[0], expected, rtol=1e-5, atol=1e-9)


def test_a_count_below_zero_says_no_more_than_zero():
    roots = PosteriorRoots(5.0).of(torch.tensor([[-1000, -1, 0, 1]]))[0]
    assert roots[0] == roots[1] == roots[2] < roots[3]


def test_without_noise_to_speak_of_the_counts_remain():
    counts = torch.tensor([[0, 1, 4, 900]])
    torch.testing.assert_close(PosteriorRoots(0.02).of(counts), counts.float().sqrt())


def test_the_table_is_worked_out_once_for_a_prior_and_nobody_can_change_it():
    prior = PosteriorRoots(3.0, largest=50)

    assert prior.table() is PosteriorRoots(3.0, largest=50).table()
    assert prior.table() is not PosteriorRoots(4.0, largest=50).table()
    with pytest.raises(ValueError, match="read-only"):
        prior.table()[0] = 1.0


@given(NOISED)
def test_projection_is_the_nearest_histogram_with_that_total(noised):
    found = denoised(torch.from_numpy(noised), 1.0, Estimator.SIMPLEX).double().numpy()
    total = np.maximum(noised.sum(axis=1), 1)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), total, rtol=1e-5)
    # Optimality: all kept bins were lowered by the same amount, and all dropped ones are at most that high.
    for row, original in zip(found, noised, strict=True):
        lowered = (original - row)[row > 1e-6]
        assert np.ptp(lowered) < 1e-3
        assert (original[row <= 1e-6] <= lowered.max() + 1e-3).all()


def test_clipping_keeps_what_is_positive():
    assert denoised(torch.tensor([[-3, 0, 5]]), 1.0, Estimator.CLIP).tolist() == [[0, 0, 5]]


def test_the_estimator_follows_the_noise():
    assert estimator_for(scale=1 / 4) is Estimator.CLIP
    assert estimator_for(scale=1 / 0.5) is estimator_for(scale=100) is Estimator.POSTERIOR
    noised = torch.tensor([[-3, 40, 2]])
    torch.testing.assert_close(denoised(noised, 10.0), denoised(noised, 10.0, Estimator.POSTERIOR))


def test_the_expected_cosine_is_that_of_the_true_counts():
    counts = np.zeros((2, 62), dtype=np.int64)
    counts[:, :4] = [[70, 10, 10, 0], [60, 0, 20, 20]]
    true = counts[0] @ counts[1] / np.linalg.norm(counts[0]) / np.linalg.norm(counts[1])
    noised = with_discrete_laplace(np.repeat(counts, 1_000, axis=0), 5.0)
    rows = UnbiasedCosineRows(torch.from_numpy(noised), 5.0)
    found = 1 - np.mean([rows.row(device)[1_000:].mean() for device in range(0, 1_000, 25)])
    assert found == pytest.approx(true, abs=0.05)
    # The plain cosine, the broken twin, takes the noise in the norms for counts.
    unit = noised / np.linalg.norm(noised, axis=1, keepdims=True)
    assert (unit[:1_000] @ unit[1_000:].T).mean() < true - 0.2


def test_a_device_of_nothing_but_noise_is_like_no_other():
    rows = UnbiasedCosineRows(torch.tensor([[1, 0, -1], [90, 0, 0]]), scale=50.0)
    assert rows.row(0).tolist() == [0.0, 1.0]


def share_with_own_kind_nearest(distances, truth):
    np.fill_diagonal(distances, np.inf)
    return (truth[distances.argmin(axis=1)] == truth).mean()


def accuracy(labels, records, epsilon, estimator):
    """How often the nearest device has the same majority label, over three fleets."""
    scores = []
    for seed in range(3):
        counts, truth = label_counts(4 * labels, labels, records, seed)
        noised = torch.from_numpy(with_discrete_laplace(counts, 1 / epsilon, seed))
        if estimator == "unbiased cosine":
            rows = UnbiasedCosineRows(noised, 1 / epsilon)
            distances = np.stack([rows.row(device) for device in range(len(rows))])
        else:
            points = hellinger_points(denoised(noised, 1 / epsilon, estimator)).double()
            distances = torch.cdist(points, points).numpy()
        scores.append(share_with_own_kind_nearest(distances, truth))
    return np.mean(scores)


@pytest.mark.parametrize(("labels", "records", "epsilon"), [(10, 100, 0.1), (10, 500, 0.02), (62, 500, 0.02)])
def test_knowing_the_noise_finds_neighbours_that_clipping_loses(labels, records, epsilon):
    clip, simplex, posterior = (accuracy(labels, records, epsilon, estimator) for estimator in Estimator)
    assert posterior > simplex > clip
    assert posterior > clip + 0.1


def test_many_labels_drown_what_is_clipped():
    assert accuracy(62, 500, 0.02, Estimator.CLIP) < 0.35
    assert accuracy(62, 500, 0.02, "unbiased cosine") < 0.35
    assert accuracy(62, 500, 0.02, Estimator.POSTERIOR) > 0.7


def test_with_little_noise_every_estimator_will_do():
    for estimator in (*Estimator, "unbiased cosine"):
        assert accuracy(10, 500, 0.5, estimator) > 0.95


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_noise_without_a_scale_is_refused(scale):
    with pytest.raises(InvalidSetting, match="scale"):
        denoised(torch.tensor([[1, 2]]), scale)


@pytest.mark.parametrize("noised", [[[1.5, 2.0]], [[math.nan, 2.0]], [1, 2]])
def test_what_no_device_released_is_refused(noised):
    with pytest.raises(InvalidSummary):
        denoised(torch.tensor(noised), 1.0)
