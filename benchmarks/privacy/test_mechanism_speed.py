"""How long a device waits for noise. Medians; the machine is shared, so the ratios matter most."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privacy.grid_gaussian import rounded_gaussian
from privacy.mechanisms import ClippedUpdate, FeatureHistogram, LabelHistogram, RandomizedResponse
from privacy.randomness import NoiseSource

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num_labels", [10, 62])
def test_label_histogram(benchmark: Any, num_labels: int) -> None:
    """A device shares this once an epoch: we want 62 labels within 1 ms."""
    labels = RNG.integers(0, num_labels, 1000)
    noise = NoiseSource()
    answer = benchmark(LabelHistogram(num_labels, 0.5).answer, labels, noise)
    assert len(answer.payload) == 8 * num_labels


def test_feature_histogram(benchmark: Any) -> None:
    """62 labels by 16 bins, most of it noise: we want it within 8 ms."""
    mechanism = FeatureHistogram(62, 16, 64, 0.5)
    data = RNG.random((100, 64)), RNG.integers(0, 62, 100)
    answer = benchmark(mechanism.answer, data, NoiseSource())
    assert len(answer.payload) == 8 * 62 * 16


def test_choice(benchmark: Any) -> None:
    """Sent with each check-in where cohorts are chosen on the device."""
    mechanism = RandomizedResponse(16, 1.0)
    assert 0 <= mechanism.decode(benchmark(mechanism.answer, 3, NoiseSource()).payload) < 16


@pytest.mark.parametrize("size", [62_000, 1_690_000])
def test_clipped_update(benchmark: Any, size: int) -> None:
    """Runs once a round: we want 1.69 M coordinates within 150 ms."""
    mechanism = ClippedUpdate({"w": (size,)}, 1.0, 1.0)
    update = {"w": RNG.normal(size=size).astype(np.float32)}
    answer = benchmark(mechanism.answer, update, NoiseSource())
    assert len(answer.payload) == mechanism.width_bytes * size


def test_noise_alone(benchmark: Any) -> None:
    """The larger part of a clipped update, beside numpy's own (unsafe) normal noise below."""
    drawn = benchmark(rounded_gaussian, NoiseSource(), Fraction(2**17), 1_690_000)
    assert abs(drawn.std() / 2**17 - 1) < 0.01


def test_unsafe_float_noise_for_comparison(benchmark: Any) -> None:
    """What exactness and a cryptographic source cost, as a ratio in one run."""
    drawn = benchmark(RNG.normal, 0.0, 1.0, 1_690_000)
    assert abs(drawn.std() - 1) < 0.01
