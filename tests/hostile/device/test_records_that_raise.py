"""No record makes a mechanism fail once its cost is booked: a failure would be an answer that nobody noised.

Whatever the constructor takes as terms, and whatever data of the public form hold, there is an answer, and its length
follows from the terms alone.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privacy.budget import NeighbouringRelation, PrivacyBudget
from privacy.errors import InvalidTerms
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.mechanisms import (
    BoundedScalar,
    ClippedUpdate,
    DiscreteGaussian,
    FeatureHistogram,
    LabelHistogram,
    RandomizedResponse,
    VotedChoice,
)
from privacy.randomness import NoiseSource, SeededSource
from privacy.release import Request, perform

LARGEST = float(np.finfo(np.float64).max)
EDGES = [0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, 2.3e-308, 1e308, -1e308, LARGEST, -LARGEST, 1.7e308, 0.1, 2.0**53]
FINITE = st.one_of(st.sampled_from(EDGES), st.floats(allow_nan=False, allow_infinity=False))
NUMBERS = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf]), FINITE)
EPSILONS = st.sampled_from([Fraction(1, 10**6), Fraction(1, 3), 1, 50, 10**20])
RELATIONS = st.sampled_from(list(NeighbouringRelation))


class Refuses:
    """Claims to be a number and is none."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __float__(self) -> float:
        raise RuntimeError("no float")

    def __int__(self) -> int:
        raise RuntimeError("no int")


class Sly(int):
    """An integer whose own methods raise."""

    def __index__(self) -> int:
        raise ZeroDivisionError

    __int__ = __index__


THINGS: list[Any] = [
    None,
    "three",
    "9" * 5000,
    b"\xff",
    [1],
    {"a": 1},
    {1, 2},
    (),
    1j,
    math.nan,
    math.inf,
    -math.inf,
    1.5,
    1e308,
    10**400,
    -(10**400),
    -1,
    2**63,
    True,
    Fraction(10**400, 3),
    Decimal("sNaN"),
    Decimal("Infinity"),
    Decimal("1e999999"),
    np.int8(-5),
    np.uint64(2**64 - 1),
    np.float16(math.nan),
    np.array(7),
    np.array([1, 2]),
    np.array(1.5),
    np.array([], dtype=np.int64),
    np.datetime64("NaT"),
    Refuses(),
    Sly(3),
]
LABEL_TYPES = [np.int8, np.int64, np.uint8, np.uint64, np.bool_]
FEATURE_TYPES = [np.float16, np.float32, np.float64, np.longdouble, np.int64, np.uint64, np.bool_]


def noise() -> NoiseSource:
    return NoiseSource(SeededSource("hostile records"))


def always_answers(mechanism: Any, data: Any, ordinary: Any) -> None:
    """The data pass the check of public form, and are then answered like any others."""
    mechanism.check(data)
    usual, odd = (mechanism.answer(each, noise()).payload for each in (ordinary, data))
    assert len(odd) == len(usual)


@given(st.integers(1, 5), EPSILONS, RELATIONS, st.lists(st.sampled_from(THINGS), max_size=6))
def test_labels_of_any_kind_are_counted_or_dropped(num_labels, epsilon, relation, labels):
    always_answers(LabelHistogram(num_labels, epsilon, relation), labels, [])


@given(st.integers(1, 300), st.sampled_from(LABEL_TYPES), st.binary(max_size=48))
def test_arrays_of_labels_of_any_type_are_counted_or_dropped(num_labels, dtype, content):
    width = np.dtype(dtype).itemsize
    labels = np.frombuffer(content[: len(content) // width * width], dtype=dtype)
    always_answers(LabelHistogram(num_labels, 1), labels, [])


def ranges(low: float, high: float) -> tuple[float, float]:
    return (low, high) if low < high else (high, low)


@given(
    st.tuples(FINITE, FINITE).filter(lambda ends: ends[0] != ends[1]).map(lambda ends: ranges(*ends)),
    st.integers(1, 4),
    RELATIONS,
    st.sampled_from(FEATURE_TYPES),
    st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(-2, 4)), max_size=4),
)
@example((-LARGEST, LARGEST), 4, NeighbouringRelation.REPLACE, np.float64, [(1.7e308, -1.7e308, 1)])
@example((-5e-324, 5e-324), 4, NeighbouringRelation.REPLACE, np.float64, [(5e-324, -5e-324, 1)])
@example((0.0, 1.0), 4, NeighbouringRelation.REPLACE, np.longdouble, [(1e308, -1e308, 1)])
def test_features_of_any_value_fall_into_a_bin_of_any_range(ends, bins, relation, dtype, records):
    mechanism = FeatureHistogram(3, bins, 2, 1, low=ends[0], high=ends[1], relation=relation)
    with np.errstate(all="ignore"):
        features = np.array([record[:2] for record in records], dtype=np.float64).reshape(-1, 2).astype(dtype)
        if dtype is np.longdouble:
            features *= np.longdouble(10) ** 100
    labels = np.array([record[2] for record in records], dtype=np.int64)
    always_answers(mechanism, (features, labels), (features[:0], labels[:0]))
    assert sum(mechanism._counts(features, labels)) == 2 * np.count_nonzero((labels >= 0) & (labels < 3))


@pytest.mark.parametrize("bins", [1, 2, 7])
def test_a_range_wider_than_a_float_has_all_its_bins(bins):
    mechanism = FeatureHistogram(1, bins, 1, 1, -LARGEST, LARGEST)
    values = np.linspace(-1.0, 1.0, 2 * bins + 1)[1::2, None] * LARGEST
    assert mechanism._counts(values, np.zeros(bins, dtype=np.int64)) == [1] * bins


@given(st.integers(2, 6), EPSILONS, RELATIONS, st.sampled_from(THINGS))
def test_a_choice_that_is_none_is_answered(num_choices, epsilon, relation, choice):
    mechanism = RandomizedResponse(num_choices, epsilon, relation)
    if hasattr(choice, "__index__"):
        always_answers(mechanism, choice, 0)
    else:
        with pytest.raises(InvalidTerms, match="nothing was booked"):
            mechanism.check(choice)


@given(st.integers(2, 6), EPSILONS, RELATIONS, st.lists(st.sampled_from(THINGS), max_size=6))
def test_votes_of_any_kind_are_counted(num_choices, epsilon, relation, votes):
    always_answers(VotedChoice(num_choices, epsilon, relation), votes, [])


def test_a_vote_that_cannot_be_read_is_one_vote_for_the_first():
    certain = VotedChoice(2, 1000)
    ballots: list[Any] = [[math.nan, None, 1], [1, 1, 1]]
    told = [certain.decode(certain.answer(votes, noise()).payload) for votes in ballots]
    assert told == [0, 1]


@given(
    st.tuples(FINITE, FINITE).filter(lambda ends: ends[0] != ends[1]).map(lambda ends: ranges(*ends)),
    st.sampled_from([1, 3, 1024, 2**52]),
    EPSILONS,
    st.sampled_from([thing for thing in THINGS if hasattr(thing, "__float__")]) | NUMBERS,
)
@example((-LARGEST, LARGEST), 1024, 1, 1.7e308)
@example((-5e-324, 5e-324), 1024, 1, 5e-324)
@example((0.0, 1.0), 1024, 1, 10**400)
def test_a_scalar_of_any_value_lies_in_any_range(ends, steps, epsilon, value):
    mechanism = BoundedScalar(ends[0], ends[1], epsilon, steps)
    always_answers(mechanism, value, ends[0])
    assert 0 <= mechanism._position(value) <= steps


def test_the_ends_of_a_scalar_are_its_first_and_last_position():
    for ends in ((0.0, 1.0), (-LARGEST, LARGEST), (0.0, 5e-324), (-1.0, 10**300)):
        mechanism = BoundedScalar(ends[0], ends[1], 1, 16)
        found = [mechanism._position(end) for end in (*ends, -(10**400), 10**400, math.nan)]
        assert found == [0, 16, 0, 16, 0]


@given(
    st.sampled_from([Fraction(1, 10**12), 1, 10**12]),
    st.sampled_from([Fraction(1, 10**6), 2, 10**9]),
    RELATIONS,
    st.sampled_from([np.float16, np.float32, np.float64, np.longdouble]),
    st.lists(NUMBERS, min_size=3, max_size=3),
)
@settings(deadline=None)
def test_a_vector_of_any_value_is_clipped(clip_norm, noise_multiplier, relation, dtype, values):
    with np.errstate(all="ignore"):
        vector = np.array(values, dtype=np.float64).astype(dtype)
        if dtype is np.longdouble:
            vector *= np.longdouble(10) ** 100
    always_answers(DiscreteGaussian(3, clip_norm, noise_multiplier, relation), vector, np.zeros(3))


@given(
    st.sampled_from([Fraction(1, 10**12), 1, 10**12]),
    st.integers(8, 24),
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.lists(NUMBERS, min_size=3, max_size=3),
)
@settings(deadline=None)
def test_an_update_of_any_value_is_clipped(clip_norm, grid_bits, dtype, values):
    with np.errstate(all="ignore"):
        update = {"w": np.array(values, dtype=np.float64).astype(dtype)}
    always_answers(ClippedUpdate({"w": (3,)}, clip_norm, 2, grid_bits=grid_bits), update, {"w": np.zeros(3)})


SENSELESS: list[tuple[Any, tuple[Any, ...]]] = [
    (LabelHistogram, (2**40, 1)),
    (LabelHistogram, (2.5, 1)),
    (LabelHistogram, ("3", 1)),
    (FeatureHistogram, (2**20, 2**20, 1, 1)),
    (FeatureHistogram, (2, 1.5, 1, 1)),
    (FeatureHistogram, (2, 2, 2, 1, 0, 10**400)),
    (FeatureHistogram, (2, 2, 2, 1, math.nan, 1.0)),
    (BoundedScalar, (0, 10**400, 1)),
    (BoundedScalar, ("a", 1, 1)),
    (BoundedScalar, (0, 1, 1, 10**400)),
    (BoundedScalar, (0, 1, 1, 1.5)),
    (RandomizedResponse, (2**40, 1)),
    (RandomizedResponse, (2.5, 1)),
    (VotedChoice, (2**40, 1)),
    (VotedChoice, (2.5, 1)),
    (DiscreteGaussian, (2.5, 1, 1)),
    (DiscreteGaussian, (2, Fraction(1, 10**400), 1)),
    (DiscreteGaussian, (2, 10**400, 1)),
    (DiscreteGaussian, (2, 1, 10**18)),
]


@pytest.mark.parametrize(("mechanism", "terms"), SENSELESS)
def test_terms_under_which_no_record_could_be_answered_are_refused_before_booking(mechanism, terms):
    with pytest.raises(InvalidTerms, match="nothing was booked"):
        mechanism(*terms)


def test_a_record_beyond_every_float_is_released_and_booked_like_another(tmp_path):
    """As found by the red team: the range is finite at both ends, its width is not."""
    table = FeatureHistogram(2, 4, 1, Fraction(1, 10), -LARGEST, LARGEST)
    records = [(np.array([[value]]), np.array([1])) for value in (0.0, 1.7e308)]
    with Ledger.open(tmp_path / "state", LedgerKeys.generate(), PrivacyBudget(100.0, 1e-6)) as ledger:
        lengths = {
            len(perform(ledger, table, data, Request("s", "features", str(number)), NoiseSource()).for_sending())
            for number, data in enumerate(records)
        }
        assert len(lengths) == 1
        assert ledger.status().sequence >= 2
