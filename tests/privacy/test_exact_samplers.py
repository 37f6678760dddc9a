"""The samplers' probabilities are the ones on paper: enumerated for small scales, tested for large ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from privacy.errors import InvalidTerms
from privacy.randomness import NoiseSource, SeededSource, SystemSource, exp_floor


class NeedChoice(Exception):
    """The recorded choices are used up; the next is one of these, with these probabilities."""

    def __init__(self, probabilities: dict[int, float]) -> None:
        self.probabilities = probabilities


class Rejected(Exception):
    """The first proposal was not accepted. Later ones are like it, so accepted shares are the outcome's."""


class Obvious(NoiseSource):
    """The sampler as on paper: every random choice goes through `below`."""

    def _bernoulli_exp_below_one(self, numerator: int, denominator: int) -> bool:
        k = 1
        while self.bernoulli(numerator, denominator * k):
            k += 1
        return k % 2 == 1


class Replayed(Obvious):
    """Makes the recorded choices, then asks for the next. Layers named in `trusted` count as one choice.

    Each sampler is built on the one below it, so each is enumerated over exact choices of the layer
    below, which was enumerated before.
    """

    def __init__(self, choices: tuple[int, ...], trusted: str) -> None:
        super().__init__(SeededSource("unused"))
        self._choices = iter(choices)
        self._trusted = trusted
        self._tries = 0
        self._bits = lambda count: self.below(1 << count)

    def _next(self, probabilities: dict[int, float]) -> int:
        for choice in self._choices:
            return choice
        raise NeedChoice(probabilities)

    def below(self, bound: int) -> int:
        return self._next(dict.fromkeys(range(bound), 1 / bound)) if bound > 1 else 0

    def _bernoulli_exp_below_one(self, numerator: int, denominator: int) -> bool:
        if self._trusted == "nothing":
            return super()._bernoulli_exp_below_one(numerator, denominator)
        p = math.exp(-numerator / denominator)
        return bool(self._next({1: p, 0: 1 - p}))

    def discrete_laplace(self, scale: Fraction) -> int:
        if self._trusted != "laplace":
            return super().discrete_laplace(scale)
        self._tries += 1
        if self._tries > 1:
            raise Rejected
        mass = laplace_mass(scale)
        return self._next({z: mass(z) for z in range(-40, 41)})


def enumerate_outcomes(
    draw: Callable[[NoiseSource], int], trusted: str, smallest: float = 1e-5
) -> tuple[dict[int, float], float]:
    """The mass of every outcome, following all choices until a path weighs less than `smallest`; and the rest."""
    mass: dict[int, float] = defaultdict(float)
    rejected = 0.0
    paths: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while paths:
        choices, weight = paths.pop()
        try:
            outcome = draw(Replayed(choices, trusted))
        except NeedChoice as need:
            if weight >= smallest:
                paths += [((*choices, value), weight * p) for value, p in need.probabilities.items() if p]
        except Rejected:
            rejected += weight
        else:
            mass[outcome] += weight
    decided = {outcome: weight / (1 - rejected) for outcome, weight in mass.items()}
    return decided, 1 - sum(decided.values())


def assert_enumeration_matches(
    draw: Callable[[NoiseSource], int], probability: Callable[[int], float], trusted: str
) -> None:
    mass, undecided = enumerate_outcomes(draw, trusted)
    assert undecided < 0.04
    for outcome, found in mass.items():
        # No outcome has more than its due, nor less than can still come.
        assert found <= probability(outcome) + 1e-12
        assert probability(outcome) <= found + undecided + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_fast_sampler_makes_the_same_choices_as_the_obvious_one(seed: int) -> None:
    fast, obvious = NoiseSource(SeededSource(seed)), Obvious(SeededSource(seed))
    for scale in (Fraction(1, 3), Fraction(7), Fraction(123, 10)):
        assert fast.discrete_laplace_vector(scale, 50) == obvious.discrete_laplace_vector(scale, 50)
    assert fast.discrete_gaussian_vector(Fraction(40), 20) == obvious.discrete_gaussian_vector(Fraction(40), 20)


def test_below_is_uniform_in_exact_arithmetic() -> None:
    """Of the 2**12 ways that two blocks of bits can fall, every value of below(48) gets equally many."""

    class Fixed:
        seeded = True

        def __init__(self, words: list[int]) -> None:
            self._words = iter(words)

        def bits(self, count: int) -> int:
            assert count == 6
            return next(self._words)

        def key(self) -> bytes:
            return bytes(32)

    outcomes = [0] * 48
    for first in range(64):
        for second in range(48):
            outcomes[NoiseSource(Fixed([first, second])).below(48)] += 1
    assert len(set(outcomes)) == 1


def laplace_mass(scale: Fraction) -> Callable[[int], float]:
    t = math.exp(-1 / scale)
    return lambda z: (1 - t) / (1 + t) * t ** abs(z)


def gaussian_mass(variance: Fraction) -> Callable[[int], float]:
    total = sum(math.exp(-(k**2) / (2 * variance)) for k in range(-200, 201))
    return lambda z: math.exp(-(z**2) / (2 * variance)) / total


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2)])
def test_discrete_laplace_has_exactly_its_closed_form(scale: Fraction) -> None:
    assert_enumeration_matches(lambda noise: noise.discrete_laplace(scale), laplace_mass(scale), "exp")


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1)])
def test_discrete_gaussian_has_exactly_its_closed_form(variance: Fraction) -> None:
    assert_enumeration_matches(lambda noise: noise.discrete_gaussian(variance), gaussian_mass(variance), "laplace")


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 3), (1, 1), (0, 1), (7, 3)])
def test_bernoulli_exp_has_exactly_its_closed_form(numerator: int, denominator: int) -> None:
    p = math.exp(-numerator / denominator)
    assert_enumeration_matches(
        lambda noise: int(noise.bernoulli_exp(numerator, denominator)), lambda z: p if z else 1 - p, "nothing"
    )


def test_enumeration_catches_a_sampler_that_keeps_both_zeros() -> None:
    def both_zeros(noise: NoiseSource) -> int:
        magnitude = noise.geometric_exp(1, 1)
        return -magnitude if noise.below(2) else magnitude

    with pytest.raises(AssertionError):
        assert_enumeration_matches(both_zeros, laplace_mass(Fraction(1)), "exp")


def chi_square_p_value(values: list[int], probability: Callable[[int], float]) -> float:
    """Goodness of fit over all values expected at least 20 times, the rest in one class."""
    low, high = min(values), max(values)
    counts = np.bincount(np.array(values) - low, minlength=high - low + 1)
    expected = np.array([probability(z) for z in range(low, high + 1)]) * len(values)
    common = expected >= 20
    observed = np.append(counts[common], counts[~common].sum())
    theory = np.append(expected[common], len(values) - expected[common].sum())
    return float(stats.chisquare(observed, theory).pvalue)


@pytest.mark.parametrize("scale", [Fraction(10), Fraction(100, 7), Fraction(784, 10)])
def test_large_discrete_laplace_fits_its_closed_form(scale: Fraction) -> None:
    values = NoiseSource(SeededSource(f"laplace {scale}")).discrete_laplace_vector(scale, 40_000)
    assert chi_square_p_value(values, laplace_mass(scale)) > 1e-3


@pytest.mark.parametrize("variance", [Fraction(100), Fraction(1000, 3)])
def test_large_discrete_gaussian_fits_its_closed_form(variance: Fraction) -> None:
    values = NoiseSource(SeededSource(f"gaussian {variance}")).discrete_gaussian_vector(variance, 20_000)
    assert chi_square_p_value(values, gaussian_mass(variance)) > 1e-3


def test_chi_square_catches_a_scale_six_percent_short() -> None:
    values = NoiseSource(SeededSource("short")).discrete_laplace_vector(Fraction(94, 10), 40_000)
    assert chi_square_p_value(values, laplace_mass(Fraction(10))) < 1e-3


@pytest.mark.parametrize("scale", [2.0, 10.0])
def test_laplace_agrees_with_opendp(scale: float) -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=20_000), dp.l1_distance(T="i64")
    theirs = dp.m.make_laplace(*space, scale=scale)([0] * 20_000)
    ours = NoiseSource(SeededSource(f"opendp {scale}")).discrete_laplace_vector(Fraction(scale), 20_000)
    assert two_sample_p_value(ours, theirs) > 1e-4


def test_gaussian_agrees_with_opendp() -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=20_000), dp.l2_distance(T="f64")
    theirs = dp.m.make_gaussian(*space, scale=7.0)([0] * 20_000)
    ours = NoiseSource(SeededSource("opendp gaussian")).discrete_gaussian_vector(Fraction(49), 20_000)
    assert two_sample_p_value(ours, theirs) > 1e-4


def test_two_sample_test_catches_a_tenth_less_noise() -> None:
    ours = NoiseSource(SeededSource("less")).discrete_laplace_vector(Fraction(9), 20_000)
    theirs = NoiseSource(SeededSource("right")).discrete_laplace_vector(Fraction(10), 20_000)
    assert two_sample_p_value(ours, theirs) < 1e-4


def two_sample_p_value(first: list[int], second: list[int]) -> float:
    edges = np.unique(np.quantile(first, np.linspace(0, 1, 25)))[1:-1]
    table = [np.bincount(np.digitize(sample, edges), minlength=len(edges) + 1) for sample in (first, second)]
    return float(stats.chi2_contingency(table).pvalue)


def test_exp_floor_is_exact() -> None:
    from mpmath import mp

    mp.prec = 400
    for exponent in (Fraction(1, 10), Fraction(-1, 3), Fraction(0), Fraction(1), Fraction(17, 4), Fraction(-30)):
        truth = int(mp.floor(mp.exp(mp.mpf(exponent.numerator) / exponent.denominator) * 2**64))
        assert exp_floor(exponent, 64) == truth


def test_system_source_gives_a_forked_child_other_bits() -> None:
    import os

    source = SystemSource()
    source.bits(8)  # reads ahead
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, source.bits(128).to_bytes(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert int.from_bytes(os.read(read_end, 16)) != source.bits(128)
    os.close(read_end)
    os.close(write_end)


def test_system_source_serves_requests_longer_than_its_pool() -> None:
    value = SystemSource().bits(20_001)
    assert value.bit_length() <= 20_001
    assert value.bit_length() > 19_900


def test_seeded_source_repeats_itself_and_says_so() -> None:
    first, second = NoiseSource(SeededSource(7)), NoiseSource(SeededSource(7))
    assert first.discrete_laplace_vector(Fraction(5), 100) == second.discrete_laplace_vector(Fraction(5), 100)
    assert first.seeded
    assert not NoiseSource().seeded


def test_global_seeds_do_not_touch_the_noise() -> None:
    import random

    def draw() -> list[int]:
        random.seed(1)
        np.random.seed(1)
        return NoiseSource().discrete_laplace_vector(Fraction(50), 40)

    assert draw() != draw()


@pytest.mark.parametrize("wrong", [Fraction(0), Fraction(-1)])
def test_noise_without_width_is_refused(wrong: Fraction) -> None:
    with pytest.raises(InvalidTerms, match="nothing was drawn"):
        NoiseSource().discrete_laplace(wrong)
    with pytest.raises(InvalidTerms, match="nothing was drawn"):
        NoiseSource().discrete_gaussian(wrong)
