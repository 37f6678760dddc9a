"""Sketches are linear, unbiased, and the same everywhere for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from server_kit import InvalidSetting
from server_kit.clustering import CountSketch
from tests.server_kit.clustering.fleets import generator


def projection(sketch, length):
    """The matrix that the sketch multiplies with."""
    return sketch.of(torch.eye(length, dtype=torch.float64)).numpy()


def test_every_coordinate_goes_to_one_bucket_with_a_sign():
    matrix = projection(CountSketch(seed=5, size=16), 400)
    assert (np.abs(matrix).sum(axis=1) == 1).all()
    assert set(np.unique(matrix)) == {-1.0, 0.0, 1.0}


def test_a_sketch_is_linear():
    rng, sketch = generator(), CountSketch(seed=1, size=32)
    one, other = (torch.from_numpy(rng.normal(size=(2, 500))) for _ in range(2))
    torch.testing.assert_close(sketch.of(2 * one - other), 2 * sketch.of(one) - sketch.of(other))


def test_products_keep_their_expectation():
    rng = generator()
    vectors = torch.from_numpy(rng.normal(size=(2, 300)) + 0.5)
    true = float(vectors[0] @ vectors[1])
    products = [float(one @ other) for one, other in (CountSketch(seed, 64).of(vectors) for seed in range(2_000))]
    deviation = float(torch.linalg.vector_norm(vectors, dim=1).prod()) * (2 / 64) ** 0.5
    assert np.mean(products) == pytest.approx(true, abs=4 * deviation / 2_000**0.5)
    assert np.std(products) <= 1.1 * deviation


def test_without_signs_products_would_be_overstated():
    vectors = torch.from_numpy(generator().normal(size=(2, 300)) + 0.5)
    unsigned = [
        float((vectors[0] @ matrix) @ (vectors[1] @ matrix))
        for matrix in (torch.from_numpy(np.abs(projection(CountSketch(seed, 64), 300))) for seed in range(50))
    ]
    assert np.mean(unsigned) > 1.5 * float(vectors[0] @ vectors[1])


def test_cosines_survive_in_a_fraction_of_the_length():
    rng = generator()
    common = rng.normal(size=20_000)
    vectors = torch.from_numpy(np.stack([common + noise * rng.normal(size=20_000) for noise in (0.0, 0.5, 1.0, 3.0)]))
    sketches = CountSketch(seed=2, size=1024).of(vectors)
    cosines = [torch.nn.functional.cosine_similarity(rows[:1], rows) for rows in (vectors, sketches)]
    torch.testing.assert_close(*cosines, atol=0.1, rtol=0)


def test_blocks_change_nothing(monkeypatch):
    vectors = torch.from_numpy(generator().normal(size=(3, 1_000)))
    whole = CountSketch(seed=9, size=20).of(vectors)
    monkeypatch.setattr("server_kit.clustering.sketches.COORDINATES_AT_ONCE", 64)
    torch.testing.assert_close(CountSketch(seed=9, size=20).of(vectors), whole)


def test_the_seed_decides():
    vectors = torch.ones(1, 100, dtype=torch.float64)
    assert torch.equal(CountSketch(3, 8).of(vectors), CountSketch(3, 8).of(vectors))
    assert not torch.equal(CountSketch(3, 8).of(vectors), CountSketch(4, 8).of(vectors))


def test_the_projection_of_a_seed_never_changes():
    """A device with another version of NumPy must make the same sketch: these are Philox's specified words."""
    matrix = projection(CountSketch(seed=2024, size=8), 10)
    signed_buckets = (1 + np.abs(matrix).argmax(axis=1)) * matrix.sum(axis=1)
    assert signed_buckets.tolist() == [-7, 6, -7, -7, -5, 7, -4, 3, 2, -5]


def test_precision_is_kept():
    for dtype in (torch.float32, torch.float64):
        assert CountSketch(0).of(torch.ones(2, 10, dtype=dtype)).dtype is dtype


@pytest.mark.parametrize("terms", [{"seed": -1}, {"seed": 2**64}, {"seed": 0, "size": 0}])
def test_settings_that_make_no_sense_are_refused(terms):
    with pytest.raises(InvalidSetting):
        CountSketch(**terms)
