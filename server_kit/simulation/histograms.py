"""What simulated devices say about their data, by the mechanisms that real ones use; the noise is seeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from privacy.mechanisms import FeatureHistogram, LabelHistogram

if TYPE_CHECKING:
    from privacy.randomness import NoiseSource
    from server_kit.interfaces import SummaryRequest
    from server_kit.simulation.population import Samples


def label_histogram(request: SummaryRequest, samples: Samples, classes: int, noise: NoiseSource) -> torch.Tensor:
    """How many records carry each label, noised as requested."""
    if request.epsilon is None:
        return torch.bincount(torch.from_numpy(samples.y), minlength=classes).float()
    mechanism = LabelHistogram(classes, str(request.epsilon), request.relation)
    return torch.tensor(mechanism.decode(mechanism.answer(samples.y.tolist(), noise).payload)).float()


def feature_histogram(request: SummaryRequest, samples: Samples, classes: int, noise: NoiseSource) -> torch.Tensor:
    """For each label how its features are spread over bins, in records, noised as requested."""
    features = samples.x.reshape(len(samples.y), -1)
    width = features.shape[1]
    if request.epsilon is None:
        table = torch.zeros(classes, request.bins)
        bins = np.clip((features * request.bins).astype(np.int64), 0, request.bins - 1)
        keys = torch.from_numpy(samples.y[:, None] * request.bins + bins).flatten()
        return table.view(-1).index_add_(0, keys, torch.ones(len(keys))).view_as(table) / width
    mechanism = FeatureHistogram(classes, request.bins, width, str(request.epsilon), relation=request.relation)
    answer = mechanism.answer((features, samples.y), noise)
    # In records, so that the noise has the scale of a label histogram's.
    return torch.tensor(mechanism.decode(answer.payload)).float() / width
