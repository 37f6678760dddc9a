"""How a release's numbers are read as symbols, what is learned from those, and what floats cannot give."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.auditing.float_support import float_supports
from privacy.auditing.granularity import granularities
from privacy.auditing.learning import learned_from
from privacy.auditing.observations import Observations
from privacy.auditing.readings import Reading, low_bit_readings, support_readings

WHOLE = np.array([[0, 1, 5, -1], [17, 256, -16, 40]])


def observed(values, second=None) -> Observations:
    values = np.asarray(values)
    coins = np.arange(len(values)) % 2 == 1 if second is None else np.asarray(second, dtype=bool)
    return Observations(coins, values, np.zeros(len(values)), np.zeros(len(values), dtype=bool))


def reading(numbers, name: str, centres=()) -> Reading:
    found = [each for each in low_bit_readings(np.asarray(numbers), centres) if each.name.startswith(name)]
    assert found, name
    return found[0]


def test_digits_of_an_integer_are_those_of_twos_complement():
    lowest = reading(WHOLE, "binary digits 0 to 3")
    assert lowest.of(WHOLE).tolist() == [[0, 1, 5, 15], [1, 0, 0, 8]]
    assert reading(WHOLE, "binary digits 4 to 7").of(WHOLE).tolist() == [[0, 0, 0, 15], [1, 0, 15, 2]]


def test_digits_of_floats_and_of_the_same_integers_agree():
    for low in (0, 2, 4):
        name = f"binary digits {low} to"
        floats = WHOLE.astype(np.float64)
        assert reading(floats, name).of(floats).tolist() == reading(WHOLE, name).of(WHOLE).tolist()


def test_digits_of_a_float_go_down_to_its_lowest():
    values = np.array([[3.0 + 2.0**-20, 1.0]])
    lowest = reading(values, "binary digits -20 to -17")
    assert lowest.of(values).tolist() == [[1, 0]]


def test_mantissa_bits_are_read_wherever_the_point_is():
    for number in (np.float32, np.float64):
        values = np.array([[1.0, 2.0**40, 0.25]], dtype=number)
        values = values + np.spacing(values) * 5
        assert reading(values, "mantissa bits 0 to 3").of(values).tolist() == [[5, 5, 5]]


def test_residues_are_modulo_small_primes_and_what_the_sums_hold():
    assert reading(WHOLE, "residue modulo 3").of(WHOLE).tolist() == [[0, 1, 2, 2], [2, 1, 2, 1]]
    assert reading(WHOLE, "residue modulo 11", [11.0]).of(WHOLE)[1].tolist() == [6, 3, 6, 7]
    wide = reading(WHOLE, "residue modulo 1000", [-1000.0, 64.0])
    assert wide.symbols == 16
    assert wide.of(np.array([[0, 999, 1000, -1]])).tolist() == [[0, 15, 0, 15]]


def test_what_is_not_finite_shows_no_symbol():
    values = np.array([[math.nan, math.inf, -math.inf, 1.0]])
    for each in (*low_bit_readings(values, [11.0]), *support_readings(np.array([[1.0, 2.0]]))):
        with np.errstate(all="ignore"):
            symbols = each.of(values)[0]
        assert symbols[:3].tolist() == [each.symbols] * 3
        assert 0 <= symbols[3] < each.symbols


def test_a_value_that_was_not_seen_before_shows_no_symbol():
    (which,) = support_readings(np.array([[3, 5], [5, 9]]))
    assert which.of(np.array([3, 4, 9, 10, -7])).tolist() == [0, 3, 2, 3, 3]


def test_values_that_hardly_ever_repeat_are_not_learned_one_by_one():
    assert support_readings(np.arange(1000)[:, None]) == []


def runs_of(number: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng, rng.random(number) < 0.5


def test_a_residue_that_tells_the_worlds_apart_is_learned_and_applies_to_other_runs():
    rng, second = runs_of(4000)
    noise = 8 * np.rint(rng.normal(scale=1000, size=(4000, 3))).astype(np.int64)
    seen = observed(noise + np.where(second, 3, 5)[:, None], second)
    lesson, unseen = seen.halves()
    statistics = learned_from(lesson)
    assert statistics
    told = statistics[0].of_each(unseen)
    assert ((told > 0) == unseen.second).all()


def test_noise_that_hides_everything_teaches_next_to_nothing():
    rng, second = runs_of(4000)
    seen = observed(rng.integers(-(2**40), 2**40, size=(4000, 3)), second)
    lesson, unseen = seen.halves()
    for statistic in learned_from(lesson):
        told = statistic.of_each(unseen)
        guessed = told != 0
        right = np.count_nonzero(((told > 0) == unseen.second) & guessed)
        assert abs(right - np.count_nonzero(guessed) / 2) < 4 * math.sqrt(np.count_nonzero(guessed) + 1)


@pytest.mark.parametrize(
    "values", [np.zeros((10, 0)), np.full((10, 2), math.nan), np.array([[1.0, math.inf]] * 10), np.ones((10, 1), bool)]
)
def test_nothing_to_learn_from_breaks_nothing(values):
    seen = observed(values)
    for statistic in learned_from(seen):
        assert len(statistic.of_each(seen)) == 10
    assert learned_from(observed(values, [True] * 10)) == []


def test_a_release_has_a_common_divisor_and_a_lowest_digit():
    trailing, divisor = granularities()
    seen = observed([[12, -18], [0, 40], [0, 0]])
    assert trailing.of_each(seen).tolist() == [1, 3, math.inf]
    assert divisor.of_each(seen).tolist() == [6, 40, 0]
    floats = observed([[12.0, -18.0], [0.5, 2.0], [math.nan, 4.0]])
    assert trailing.of_each(floats).tolist() == [1, -1, 2]
    assert divisor.of_each(floats)[0] == 6
    assert np.isnan(divisor.of_each(floats)[1:]).all()


@given(st.floats(-1, 1, width=32), st.floats(-1e6, 1e6, width=32))
def test_what_float_noise_did_give_is_never_called_impossible(gradient, noise):
    released = np.float32(gradient) + np.float32(noise)
    first, _ = float_supports(([gradient], [0.0]), 1)
    assert first.of_each(observed(np.array([[released]], dtype=np.float32))).tolist() == [0]
    grid = 2.0**24
    steps = np.array([[np.rint(np.float64(released) * grid)]]).astype(np.int64)
    on_grid, _ = float_supports(([gradient * grid], [0.0]), 1)
    assert on_grid.of_each(observed(steps)).tolist() == [0]


def test_below_a_power_of_two_float_noise_cannot_give_every_other_value():
    """1 − 2⁻²⁴ is a float32; from −1/4 it would take the noise 5/4 − 2⁻²⁴, which is none."""
    below = np.array([[1 - 2.0**-24]])
    first, second = float_supports(([-0.25], [0.25]), 1)
    assert first.of_each(observed(below)).tolist() == [1]
    assert second.of_each(observed(below)).tolist() == [0]


def test_without_sums_of_both_worlds_floats_are_not_looked_at():
    assert float_supports(None, 3) == []
    assert float_supports(([1.0], [2.0]), 3) == []
