"""Rounded Gaussian noise for long vectors: exactly distributed, whatever the margin decides."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from privacy import grid_gaussian
from privacy.errors import InvalidTerms
from privacy.grid_gaussian import rounded_gaussian
from privacy.randomness import NoiseSource, SeededSource


def source(seed: object) -> NoiseSource:
    return NoiseSource(SeededSource(str(seed)))


def p_value_against_rounded_normal(values: np.ndarray, deviation: float) -> float:
    found, counts = np.unique(values, return_counts=True)
    expected = np.diff(stats.norm.cdf((np.append(found, found[-1] + 1) - 0.5) / deviation)) * len(values)
    common = expected >= 20
    observed = np.append(counts[common], counts[~common].sum())
    theory = np.append(expected[common], len(values) - expected[common].sum())
    return float(stats.chisquare(observed, theory).pvalue)


@pytest.mark.parametrize("deviation", [Fraction(64), Fraction(127), Fraction(1000, 7), Fraction(400)])
def test_every_integer_has_the_probability_of_its_interval(deviation: Fraction) -> None:
    values = rounded_gaussian(source(deviation), deviation, 400_000)
    assert p_value_against_rounded_normal(values, float(deviation)) > 1e-3


def test_chi_square_catches_two_percent_less_noise() -> None:
    values = rounded_gaussian(source("short"), Fraction(98), 400_000)
    assert p_value_against_rounded_normal(values, 100.0) < 1e-3


@pytest.mark.parametrize("deviation", [Fraction(2**17), Fraction(2**20 * 77, 100), Fraction(2**33)])
def test_wide_noise_is_normal(deviation: Fraction) -> None:
    values = rounded_gaussian(source(deviation), deviation, 200_000) / float(deviation)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    # The tails too: how many lie beyond 4 standard deviations is Poisson with a known mean.
    assert 1e-4 < stats.poisson.cdf((np.abs(values) > 4).sum(), 200_000 * 2 * stats.norm.sf(4)) < 1 - 1e-4


def test_neighbouring_coordinates_are_uncorrelated() -> None:
    values = rounded_gaussian(source("independence"), Fraction(1000), 200_000).astype(float)
    for lag in (1, 2, 3, 32_768):
        correlation = np.corrcoef(values[:-lag], values[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(len(values))


def test_decisions_settled_by_hand_have_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a margin this wide about half of all candidates are settled with exact decimals.
    monkeypatch.setattr(grid_gaussian, "_MARGIN", 0.25)
    values = rounded_gaussian(source("by hand"), Fraction(64), 6_000)
    assert stats.kstest(values / 64 + 1e-9, "norm").pvalue > 1e-3


def test_hand_and_float_agree_wherever_the_float_is_sure() -> None:
    table = grid_gaussian._table(Fraction(2**17))
    rng = np.random.default_rng(0)
    for block, place, test in rng.integers(0, [100, 2**32, 2**31], size=(400, 3)).tolist():
        position = place / 2**32
        acceptance = np.exp(-table.exponent_scale * position * (position + 2 * block))
        if abs(test / 2**31 - acceptance) > grid_gaussian._MARGIN:
            settled = grid_gaussian._settle(table, block, place, test, lambda: int(rng.integers(2**32)))
            assert settled == (test / 2**31 < acceptance)


def test_blocks_settled_by_hand_follow_the_exact_thresholds() -> None:
    table = grid_gaussian._table(Fraction(2**17))
    for index in (0, 5, 40):
        word = int(table.thresholds[index])
        assert grid_gaussian._settle_block(table, word, lambda: 0) == index
        assert grid_gaussian._settle_block(table, word, lambda: 2**32 - 1) == index + 1


def test_a_word_equal_to_a_threshold_is_never_decided_by_the_table() -> None:
    table = grid_gaussian._table(Fraction(2**17))
    words = table.thresholds[:40].copy()
    asked = []

    def more() -> int:
        asked.append(1)
        return 0

    grid_gaussian._blocks(table, words, more)
    assert len(asked) >= len(words)


def test_two_draws_differ_and_seeded_ones_repeat() -> None:
    assert not np.array_equal(
        rounded_gaussian(NoiseSource(), Fraction(1000), 50), rounded_gaussian(NoiseSource(), Fraction(1000), 50)
    )
    assert np.array_equal(
        rounded_gaussian(source(1), Fraction(1000), 50), rounded_gaussian(source(1), Fraction(1000), 50)
    )


@pytest.mark.parametrize("size", [0, 1, 31, 32_768, 40_000])
def test_any_size_is_filled(size: int) -> None:
    assert rounded_gaussian(source(size), Fraction(1000), size).shape == (size,)


@pytest.mark.parametrize("deviation", [Fraction(63), Fraction(2**34)])
def test_a_deviation_outside_the_table_is_refused(deviation: Fraction) -> None:
    with pytest.raises(InvalidTerms, match="choose another grid"):
        rounded_gaussian(NoiseSource(), deviation, 10)
