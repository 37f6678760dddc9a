"""From label counts, noised or not, to points that a clusterer can compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy.typing as npt
import torch

from server_kit.clustering.checks import as_tensor, require_rows
from server_kit.clustering.denoising import Estimator, denoised, estimator_for
from server_kit.clustering.distances import hellinger_points, l2_points


class HistogramDistance(StrEnum):
    """How two label distributions are compared; L2 leaves the wider gap between unlike majorities."""

    HELLINGER = "hellinger"
    L2 = "l2"


@dataclass(frozen=True)
class HistogramPoints:
    """Devices as points whose Euclidean distance is the chosen one, and how they were made."""

    points: torch.Tensor
    distance: HistogramDistance
    estimator: Estimator | None
    """How counts were denoised; None where they came without noise."""
    resolution: float
    """How far one record more or less moves a typical device: nothing nearer is worth telling apart."""


def histogram_points(
    counts: npt.ArrayLike | torch.Tensor,
    distance: HistogramDistance = HistogramDistance.L2,
    noise_scale: float | None = None,
    estimator: Estimator | None = None,
) -> HistogramPoints:
    """Embed label counts, one row for each device; with `noise_scale` they are denoised first.

    A device without records is a point of its own kind, equal to all other empty ones.
    """
    histograms = as_tensor(counts)
    require_rows(histograms, "histograms")
    used = None if noise_scale is None else estimator or estimator_for(noise_scale)
    if noise_scale is not None:
        histograms = denoised(histograms, noise_scale, used)
    embed = l2_points if distance is HistogramDistance.L2 else hellinger_points
    points = embed(histograms)
    return HistogramPoints(points, distance, used, one_record(histograms, distance))


def one_record(counts: torch.Tensor, distance: HistogramDistance) -> float:
    """How far a device of the median size, of those with records, moves when one of them takes another label."""
    records = counts.sum(dim=1, dtype=torch.float64)
    typical = max(1.0, float(records[records > 0].median())) if bool((records > 0).any()) else 1.0
    # L2: two frequencies change by 1/n. Hellinger: the largest move is that of a record with a label of its own.
    return math.sqrt(2) / typical if distance is HistogramDistance.L2 else 1 / math.sqrt(typical)
