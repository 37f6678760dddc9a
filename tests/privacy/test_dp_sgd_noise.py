"""The noise of a step is Gaussian out to its tails, and nobody can predict it."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats

from privacy.randomness import NoiseSource, SeededSource
from privacy.training import step_noise
from privacy.training.step_noise import StepNoise

torch.set_num_threads(1)


def noise(seed: object, deviation: float = 1.0) -> StepNoise:
    return StepNoise(NoiseSource(SeededSource(str(seed))).stream_key(), deviation)


def drawn(seed: object, size: int, deviation: float = 1.0) -> np.ndarray:
    vector = torch.zeros(size)
    noise(seed, deviation).add_to(vector)
    return vector.numpy().astype(np.float64)


def faults(values: np.ndarray, deviation: float) -> list[str]:
    """How values differ from N(0, deviation²); each test errs once in 10 000."""
    found = [] if stats.kstest(values / deviation, "norm", method="asymp").pvalue > 1e-4 else ["shape"]
    for reach in (3.0, 4.0):
        beyond = (np.abs(values) > reach * deviation).sum()
        if not 1e-4 < stats.poisson.cdf(beyond, len(values) * 2 * stats.norm.sf(reach)) <= 1 - 1e-4:
            found.append(f"tail beyond {reach:g}")
    return found


@pytest.mark.statistical
@pytest.mark.parametrize("deviation", [1.0, 0.37, 1e4])
def test_noise_is_normal_to_its_tails(deviation):
    assert faults(drawn(deviation, 1_000_000, deviation), deviation) == []


@pytest.mark.statistical
def test_one_percent_too_little_noise_is_caught():
    assert faults(drawn("short", 1_000_000, 0.99), 1.0)


@pytest.mark.statistical
def test_coordinates_are_uncorrelated_within_and_between_steps():
    source = noise("steps")
    first, second = torch.zeros(400_000), torch.zeros(400_000)
    source.add_to(first)
    source.add_to(second)
    for lag in (1, 2, step_noise._PAIRS):  # the last one is the other half of a pair
        for one, other in ((first[lag:], first[:-lag]), (first[lag:], second[:-lag]), (first**2, second**2)):
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))
    pairs = first[: step_noise._PAIRS] ** 2, first[step_noise._PAIRS : 2 * step_noise._PAIRS] ** 2
    assert abs(np.corrcoef(*pairs)[0, 1]) < 5 / np.sqrt(step_noise._PAIRS)


def radius_of(word: int, more: int = 2**63) -> float:
    """The radius of a pair whose word is `word` (31 bits) and, where that is not enough, `more` (64 bits)."""
    source = noise("words")
    given = [np.array([2 * word, 0], dtype=np.uint32), np.array([more], dtype=np.uint64).view(np.uint32)]
    vars(source._stream)["fill"] = lambda words, zeros: np.copyto(words, given.pop(0)[: len(words)])
    radius, _ = source._draw_pairs(1)
    return float(radius[0])


@pytest.mark.parametrize("more", [0, 2**20, 2**63, 2**64 - 1])
@pytest.mark.parametrize("word", [0, 1, 1000, 2**11, 2**20, 2**30, 2**31 - 2**23, 2**31 - 2, 2**31 - 1])
def test_the_radius_is_that_of_its_uniform_number_at_both_ends(word, more):
    with localcontext(prec=60):
        uniform = (word + Decimal(2 * more + 1) / 2**65) / 2**31
        expected = float((-2 * uniform.ln()).sqrt())
    in_the_middle = 2**11 <= word < 2**31 - 2**23
    assert radius_of(word, more) == pytest.approx(expected, rel=1e-3 if in_the_middle else 1e-6)


def test_noise_reaches_beyond_nine_standard_deviations_and_is_never_exactly_nothing():
    assert radius_of(0, 0) > 11
    assert 0 < radius_of(2**31 - 1, 2**64 - 1) < 1e-14


@pytest.mark.parametrize("size", [1, step_noise._PAIRS, step_noise._PAIRS + 1, 2 * step_noise._PAIRS + 3])
def test_every_coordinate_is_noised_once(size):
    values = drawn("size", size)
    assert len(values) == size
    assert (values != 0).all()
    assert len(np.unique(values)) > 0.99 * size


def test_noise_adds_to_what_is_there_in_either_precision():
    for dtype in (torch.float32, torch.float64):
        vector = torch.full((1000,), 5.0, dtype=dtype)
        noise("add", 0.1).add_to(vector)
        assert np.allclose(vector.numpy() - 5.0, drawn("add", 1000, 0.1), atol=1e-5)


def test_seeding_torch_and_numpy_does_not_fix_the_noise():
    def after_seeding() -> torch.Tensor:
        torch.manual_seed(0)
        np.random.seed(0)
        vector = torch.zeros(100)
        StepNoise(NoiseSource().stream_key(), 1.0).add_to(vector)
        return vector

    assert not torch.equal(after_seeding(), after_seeding())
