"""The integer norm of what is released never exceeds the bound, whatever floats arrive."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from privacy.clipping import clip_to_grid, euclidean_norm

ANY_FLOATS = npst.arrays(
    np.float64,
    st.integers(0, 40),
    elements=st.one_of(
        st.floats(allow_nan=True, allow_infinity=True),
        st.sampled_from([0.0, -0.0, 1e30, -1e300, 1.7e308, 5e-324, -1e-310, math.nan, math.inf, -math.inf]),
    ),
)
CLIPS = st.sampled_from([1e-12, 1e-3, 0.1, 1.0, 3.7, 1e12])


def norm_squared(whole: np.ndarray) -> int:
    return sum(int(q) ** 2 for q in whole)


@given(ANY_FLOATS, CLIPS, st.sampled_from([256, 1024, 2**17, 2**20, 2**24]))
def test_integer_norm_is_bounded_for_any_floats(vector: np.ndarray, clip_norm: float, bound: int) -> None:
    assert norm_squared(clip_to_grid(vector.copy(), clip_norm, bound)) <= bound**2


@given(ANY_FLOATS)
def test_one_value_that_is_not_finite_makes_the_whole_vector_zero(vector: np.ndarray) -> None:
    spoiled = np.append(vector, math.nan)
    assert not clip_to_grid(spoiled, 1.0, 1024).any()


def test_bypass_by_nan_is_caught_by_the_same_bound() -> None:
    # The well-known mistake: min(1, C/nan) is 1, and the finite part goes through unclipped.
    vector = np.append(np.full(2500, 31.0), math.nan)
    unclipped = np.nan_to_num(vector * min(1, 1.0 / math.nan if False else 1)) * 1024
    assert norm_squared(np.rint(unclipped).astype(np.int64)) > 1024**2
    assert norm_squared(clip_to_grid(vector, 1.0, 1024)) <= 1024**2


def test_short_vectors_are_kept_and_long_ones_keep_their_direction() -> None:
    short = clip_to_grid(np.array([0.3, -0.4]), 1.0, 1000)
    assert short.tolist() == [300, -400]
    long = clip_to_grid(np.array([3e5, -4e5]), 1.0, 1000)
    assert long.tolist() == [600, -800]


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_rounding_many_coordinates_never_lengthens_beyond_the_bound(size: int) -> None:
    # All coordinates just above half a step: rounding to the nearest would double them.
    vector = np.full(size, 0.5000001)
    bound = int(0.51 * math.sqrt(size))
    assert norm_squared(clip_to_grid(vector.copy(), float(bound), bound)) <= bound**2


def test_rounding_alone_would_exceed_the_bound() -> None:
    vector = np.full(10_000, 0.5000001)
    assert norm_squared(np.rint(vector).astype(np.int64)) > 51**2


@given(npst.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e300, 1e300)))
def test_norm_neither_overflows_nor_vanishes(vector: np.ndarray) -> None:
    assert euclidean_norm(vector) == pytest.approx(math.hypot(*vector.tolist()), rel=1e-12)
