"""Distances, against their definitions written out pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from server_kit import InvalidSummary
from server_kit.clustering import (
    AverageHellingerRows,
    EuclideanRows,
    cosine_points,
    cosine_similarity,
    hellinger_points,
    l2_points,
    mean_absolute_difference_of_cosines,
)
from server_kit.clustering.distances import gram_matrix

COUNTS = arrays(np.int64, st.tuples(st.integers(2, 6), st.integers(1, 5)), elements=st.integers(0, 50))


def hellinger_by_definition(first, second):
    """√(1 − Σ√(pq)) for distributions; an empty histogram has no overlap with any, and half the length."""
    p, q = (side / max(1, side.sum()) for side in (first, second))
    return math.sqrt(max(0.0, (p.sum() + q.sum()) / 2 - np.sqrt(p * q).sum()))


def between(points, first, second):
    return float(torch.linalg.vector_norm(points[first].double() - points[second].double()))


@given(COUNTS)
def test_points_are_as_far_apart_as_hellinger_says(counts):
    points = hellinger_points(torch.from_numpy(counts))
    assert between(points, 0, 1) == pytest.approx(hellinger_by_definition(counts[0], counts[1]), abs=2e-3)


def test_hellinger_runs_from_zero_to_one():
    points = hellinger_points(torch.tensor([[5, 0], [50, 0], [0, 3]]))
    assert between(points, 0, 1) == 0
    assert between(points, 0, 2) == pytest.approx(1)


def test_without_the_root_of_two_hellinger_would_exceed_one():
    roots = hellinger_points(torch.tensor([[5, 0], [0, 3]])) * math.sqrt(2)
    assert between(roots, 0, 1) > 1


@given(COUNTS)
def test_l2_compares_frequencies(counts):
    first, second = (row / max(1, row.sum()) for row in counts[:2])
    assert between(l2_points(torch.from_numpy(counts)), 0, 1) == pytest.approx(np.linalg.norm(first - second), abs=1e-5)


def test_empty_histograms_are_alike_and_far_from_all_others():
    points = hellinger_points(torch.tensor([[0, 0], [0, 0], [1, 3]]))
    assert between(points, 0, 1) == 0
    assert between(points, 0, 2) == pytest.approx(math.sqrt(0.5))


def test_squared_distance_of_cosine_points_is_one_minus_cosine():
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 7)))
    similarity = cosine_similarity(vectors)
    assert between(cosine_points(vectors), 1, 3) ** 2 == pytest.approx(1 - float(similarity[1, 3]))


def test_cosines_are_those_of_the_definition():
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 9)))
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=2)
    torch.testing.assert_close(cosine_similarity(vectors), expected)


def test_a_zero_vector_is_like_no_other():
    similarity = cosine_similarity(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    assert similarity[0].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("centred", [False, True])
def test_the_gram_matrix_read_in_blocks_is_that_of_the_whole(monkeypatch, centred):
    monkeypatch.setattr("server_kit.clustering.distances.COLUMNS_AT_ONCE", 7)
    vectors = torch.from_numpy(np.random.default_rng(0).normal(loc=3, size=(5, 30)))
    whole = vectors - vectors.mean(dim=0) if centred else vectors
    torch.testing.assert_close(gram_matrix(vectors, centred), whole @ whole.T)


def test_madc_is_the_mean_difference_of_opinions_about_the_others():
    similarity = cosine_similarity(torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4))))
    madc = mean_absolute_difference_of_cosines(similarity)
    for i in range(6):
        for j in range(6):
            others = [z for z in range(6) if z not in {i, j}]
            expected = 0 if i == j else np.mean([abs(float(similarity[i, z] - similarity[j, z])) for z in others])
            assert float(madc[i, j]) == pytest.approx(expected, abs=1e-12)


def test_madc_of_two_devices_is_zero():
    assert mean_absolute_difference_of_cosines(cosine_similarity(torch.eye(2))).tolist() == [[0, 0], [0, 0]]


def average_hellinger_by_definition(first, second):
    distances = []
    for ours, theirs in zip(first, second, strict=True):
        if ours.any() and theirs.any():
            distances.append(hellinger_by_definition(ours, theirs))
        elif ours.any() or theirs.any():
            distances.append(1.0)
    return np.mean(distances) if distances else 0.0


@given(arrays(np.int64, (4, 3, 4), elements=st.integers(0, 4)))
def test_conditional_histograms_are_averaged_over_the_labels_of_either(tables):
    rows = AverageHellingerRows(torch.from_numpy(tables))
    expected = [average_hellinger_by_definition(tables[1], other) for other in tables]
    np.testing.assert_allclose(rows.row(1), expected, atol=2e-3)


def test_a_label_on_one_side_only_counts_as_the_largest_distance():
    tables = torch.tensor([[[1, 1], [0, 0]], [[1, 1], [2, 0]]])
    assert AverageHellingerRows(tables).row(0).tolist() == [0.0, 0.5]
    # The sum of the released code, the broken twin, would grow with the number of labels.
    assert AverageHellingerRows(tables.repeat(1, 5, 1)).row(0)[1] == 0.5


def test_equal_points_are_at_zero_exactly_even_far_from_the_origin():
    points = torch.full((3, 5), 1e6) + torch.tensor([[0.0], [0.0], [1.0]])
    assert EuclideanRows(points).row(0)[1] == 0
    assert EuclideanRows(points).row(0)[2] == pytest.approx(math.sqrt(5))


@pytest.mark.parametrize("counts", [[[1.0, math.nan]], [[1.0, math.inf]], [[3, -1]], [3, 1], [[]]])
def test_impossible_counts_are_refused(counts):
    for embed in (hellinger_points, l2_points):
        with pytest.raises(InvalidSummary, match="histogram"):
            embed(torch.tensor(counts))
