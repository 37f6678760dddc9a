"""What is not finite, or not one row for each device, is refused everywhere, and no message shows a value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from server_kit import InvalidSummary, ServerError
from server_kit.clustering import (
    AverageHellingerRows,
    CflCriterion,
    CountSketch,
    EuclideanRows,
    HierarchicalClustering,
    KMeans,
    OnlineKMeans,
    Optics,
    TernaryCosine,
    UnbiasedCosineRows,
    adjusted_rand_index,
    affinity,
    bipartition,
    cosine_points,
    denoised,
    heterogeneity,
    histogram_points,
    permutation_z,
    placed,
    rms_ratio,
    spanning_tree_at_scale,
)
from tests.server_kit.clustering.fleets import generator

SECRET = 123.0
TWO_GROUPS = np.arange(8) % 2
CONSUMERS = {
    "optics": lambda rows: Optics().cluster(rows, generator()),
    "optics at scale": lambda rows: Optics(exact_up_to=0).cluster(rows, generator()),
    "spanning tree": lambda rows: spanning_tree_at_scale(rows, generator()),
    "euclidean": EuclideanRows,
    "average hellinger": lambda rows: AverageHellingerRows(rows[:, None] if rows.ndim > 1 else rows),
    "unbiased cosine": lambda rows: UnbiasedCosineRows(rows, 1.0),
    "histograms": histogram_points,
    "noised histograms": lambda rows: histogram_points(rows, noise_scale=1.0),
    "denoising": lambda rows: denoised(rows, 1.0),
    "cosine": cosine_points,
    "affinity": affinity,
    "k-means": lambda rows: KMeans(2).cluster(rows, generator()),
    "online k-means, first": lambda rows: OnlineKMeans().first(rows, generator()),
    "online k-means, later": lambda rows: OnlineKMeans().later(rows, TWO_GROUPS),
    "ternary cosine": lambda rows: TernaryCosine(2).cluster(rows, generator()),
    "bipartition": bipartition,
    "cfl": lambda rows: CflCriterion().holds(rows, 30),
    "hierarchical": lambda rows: HierarchicalClustering(clusters=2).cluster(rows),
    "sketch": CountSketch(1).of,
    "heterogeneity": lambda rows: heterogeneity(rows, rows, TWO_GROUPS),
    "permutation": lambda rows: permutation_z(rows, TWO_GROUPS, generator()),
    "rms": lambda rows: rms_ratio(rows, TWO_GROUPS),
    "newcomers": lambda rows: placed(rows, torch.zeros(1, 3), np.zeros(1, dtype=np.int64), 1.0),
    "known": lambda rows: placed(torch.zeros(1, 3), rows, TWO_GROUPS, 1.0),
}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=CONSUMERS.keys())
def test_what_is_not_finite_is_refused(consumer, wrong):
    rows = torch.full((8, 3), SECRET)
    rows[5, 1] = wrong
    with pytest.raises(InvalidSummary, match="row 5") as refused:
        consumer(rows)
    assert str(int(SECRET)) not in str(refused.value)


@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=CONSUMERS.keys())
def test_what_is_finite_is_accepted(consumer):
    consumer(torch.full((8, 3), SECRET))


@pytest.mark.parametrize("rows", [torch.ones(3), torch.ones(0, 3), torch.ones(3, 0)], ids=["flat", "nobody", "nothing"])
@pytest.mark.parametrize("consumer", [CONSUMERS["optics"], CONSUMERS["histograms"], CONSUMERS["ternary cosine"]])
def test_anything_but_one_row_for_each_device_is_refused(consumer, rows):
    with pytest.raises(InvalidSummary, match="shape"):
        consumer(rows)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.complex64])
def test_vectors_of_another_type_are_refused(dtype):
    with pytest.raises(InvalidSummary, match="float32"):
        KMeans(2).cluster(torch.ones(4, 2).to(dtype), generator())


@pytest.mark.parametrize("labels", [[[0], [1]], [0.5, 1.0], [-2, 0]])
def test_labels_are_whole_numbers(labels):
    with pytest.raises(InvalidSummary, match="label"):
        adjusted_rand_index(np.array(labels), np.array([0, 1]))


def test_every_refusal_is_a_server_error():
    assert issubclass(InvalidSummary, ServerError)
    assert issubclass(InvalidSummary, ValueError)
