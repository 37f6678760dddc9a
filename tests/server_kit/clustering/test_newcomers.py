"""Newcomers are placed as if one came after another, and nobody else moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from server_kit import InvalidSetting, InvalidSummary
from server_kit.clustering import Optics, histogram_points, placed
from tests.server_kit.clustering.fleets import generator, label_counts, same_partition

POINTS = arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(-5, 5).map(float))


def placed_one_by_one(newcomers, known, labels, eps):
    known, labels = [*known], [*labels]
    for newcomer in newcomers:
        distances = [np.linalg.norm(newcomer - other) for other in known]
        nearest = int(np.argmin(distances))
        labels.append(labels[nearest] if distances[nearest] <= eps else max(labels) + 1)
        known.append(newcomer)
    return labels[len(labels) - len(newcomers) :]


@settings(max_examples=80)
@given(newcomers=POINTS, known=POINTS, eps=st.sampled_from([0.0, 1.0, 2.0, 5.0]))
def test_placing_many_is_placing_one_after_another(newcomers, known, eps):
    # Off the grid, so that no two distances are equal.
    newcomers = newcomers + 0.1 * np.random.default_rng(0).random(newcomers.shape)
    known = known + 0.1 * np.random.default_rng(1).random(known.shape)
    labels = np.arange(len(known)) % 3
    found = placed(torch.from_numpy(newcomers), torch.from_numpy(known), labels, eps)
    assert found.tolist() == placed_one_by_one(newcomers, known, labels, eps)


def test_blocks_change_nothing(monkeypatch):
    rng = generator()
    newcomers, known = torch.from_numpy(rng.normal(size=(40, 3))), torch.from_numpy(rng.normal(size=(30, 3)))
    labels = np.arange(30)
    whole = placed(newcomers, known, labels, 0.4)
    monkeypatch.setattr("server_kit.clustering.newcomers.NEWCOMERS_AT_ONCE", 7)
    monkeypatch.setattr("server_kit.clustering.newcomers.KNOWN_AT_ONCE", 11)
    np.testing.assert_array_equal(placed(newcomers, known, labels, 0.4), whole)


def test_newcomers_join_the_clusters_they_would_have_been_in():
    counts, truth = label_counts(400, 10, records=500)
    points = histogram_points(counts).points
    found = Optics().cluster(points[:300], generator())
    later = placed(points[300:], points[:300], found.labels, found.evidence.eps)
    assert same_partition([*found.labels, *later], truth)


def test_a_newcomer_like_no_other_is_alone_until_its_like_comes():
    known, labels = torch.tensor([[0.0], [0.1], [9.0]]), np.array([0, 0, 1])
    assert placed(torch.tensor([[4.0], [4.1], [0.2]]), known, labels, 0.5).tolist() == [2, 2, 0]


def test_centres_will_do_instead_of_devices():
    assert placed(torch.tensor([[0.9]]), torch.tensor([[0.0], [1.0]]), np.array([0, 1]), math.inf).tolist() == [1]


@pytest.mark.parametrize("eps", [-1.0, math.nan])
def test_a_distance_is_not_negative(eps):
    with pytest.raises(InvalidSetting, match="eps"):
        placed(torch.zeros(1, 1), torch.zeros(1, 1), np.array([0]), eps)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidSummary, match="coordinates"):
        placed(torch.zeros(1, 2), torch.zeros(1, 1), np.array([0]), 1.0)
    with pytest.raises(InvalidSummary, match="labels"):
        placed(torch.zeros(1, 1), torch.zeros(2, 1), np.array([0]), 1.0)
