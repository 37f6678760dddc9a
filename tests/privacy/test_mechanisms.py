"""What holds for every mechanism, and what each one promises on its own."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.budget import NeighbouringRelation, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.mechanisms import (
    BoundedScalar,
    ClippedUpdate,
    DiscreteGaussian,
    FeatureHistogram,
    LabelHistogram,
    RandomizedResponse,
)
from privacy.mechanisms.label_histogram import count_labels
from privacy.randomness import NoiseSource, SeededSource

ADD_REMOVE, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE
FEATURES = np.random.default_rng(0).random((30, 12))
LABELS = np.arange(30) % 5
UPDATE = {"weight": np.full((4, 3), 0.1), "bias": np.zeros(3), "empty": np.zeros((0, 2))}
SHAPES = {name: tensor.shape for name, tensor in UPDATE.items()}

# Each with ordinary data and with data that must change neither length nor success.
CASES: list[tuple[Any, Any, list[Any]]] = [
    (LabelHistogram(5, 1.0), LABELS, [[], [99, -1], np.zeros(0, dtype=np.int64), [2] * 500]),
    (LabelHistogram(5, 1.0, ADD_REMOVE), LABELS.tolist(), [[], [10**30], [3]]),
    (
        FeatureHistogram(5, 4, 12, 1.0),
        (FEATURES, LABELS),
        [(FEATURES * math.nan, LABELS), (FEATURES * 1e300, LABELS), (FEATURES[:0], LABELS[:0]), (FEATURES, LABELS - 9)],
    ),
    (RandomizedResponse(4, 1.0), 2, [-1, 4, 10**20, np.int64(1)]),
    (BoundedScalar(0.0, 5.0, 1.0), 1.5, [math.nan, math.inf, -math.inf, 1e300, 0]),
    (
        ClippedUpdate(SHAPES, 1.0, 2.0),
        UPDATE,
        [{name: np.full(shape, v) for name, shape in SHAPES.items()} for v in (0, 1e30, math.nan, math.inf, 5e-324)],
    ),
    (ClippedUpdate({}, 1.0, 2.0), {}, []),
    (DiscreteGaussian(6, 1.0, 2.0), np.ones(6), [np.zeros(6), np.full(6, math.nan), np.full(6, 1e300)]),
]
IDS = [f"{mechanism.name}-{mechanism.relation}" for mechanism, _, _ in CASES]


@pytest.mark.parametrize(("mechanism", "data", "odd"), CASES, ids=IDS)
class TestEveryMechanism:
    def test_answers_have_one_length_whatever_the_data(self, mechanism: Any, data: Any, odd: list[Any]) -> None:
        mechanism.check(data)
        length = len(mechanism.answer(data, NoiseSource()).payload)
        for strange in odd:
            mechanism.check(strange)
            assert len(mechanism.answer(strange, NoiseSource()).payload) == length

    def test_cost_is_known_before_data_and_names_unit_and_relation(self, mechanism: Any, data: Any, odd: Any) -> None:
        del data, odd
        assert mechanism.cost.relation is mechanism.relation
        assert mechanism.cost.unit in PrivacyUnit
        assert mechanism.guarantee.proof
        assert mechanism.guarantee.sensitivity

    def test_two_answers_differ_and_a_seed_is_confessed(self, mechanism: Any, data: Any, odd: Any) -> None:
        del odd
        many = {mechanism.answer(data, NoiseSource()).payload for _ in range(60)}
        assert len(many) > 1 or not mechanism.answer(data, NoiseSource()).payload
        assert mechanism.answer(data, NoiseSource(SeededSource(1))).seeded
        assert not mechanism.answer(data, NoiseSource()).seeded

    def test_noise_is_drawn_before_data_are_read(self, mechanism: Any, data: Any, odd: Any) -> None:
        del odd
        drawn: list[str] = []

        class Watched(SeededSource):
            def bits(self, count: int) -> int:
                drawn.append("noise")
                return super().bits(count)

            def key(self) -> bytes:
                drawn.append("noise")
                return super().key()

        try:
            mechanism.answer(Unreadable(data, drawn), NoiseSource(Watched(3)))
        except DataRead:
            assert drawn[0] == "noise"
            assert drawn[-1] == "data"

    def test_terms_are_plain_and_decide_equality(self, mechanism: Any, data: Any, odd: Any) -> None:
        del data, odd
        assert all(isinstance(value, int | str) for value in mechanism.terms.values())
        assert dataclasses.replace(mechanism) == mechanism


class DataRead(Exception):
    """Somebody looked."""


class Unreadable:
    """Stands for data; the first look at it is written down and ends the run."""

    def __init__(self, data: Any, log: list[str]) -> None:
        object.__setattr__(self, "_log", log)
        del data

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_log").append("data")
        raise DataRead

    def __iter__(self) -> Any:
        object.__getattribute__(self, "_log").append("data")
        raise DataRead

    def __getitem__(self, key: object) -> Any:
        object.__getattribute__(self, "_log").append("data")
        raise DataRead

    __float__ = __index__ = __len__ = __iter__


def noise_of(mechanism: Any, data: Any, seed: int) -> np.ndarray:
    return np.array(mechanism.decode(mechanism.answer(data, NoiseSource(SeededSource(seed))).payload))


def test_label_histogram_is_counts_plus_noise_of_the_declared_scale() -> None:
    deviations = {}
    for relation in NeighbouringRelation:
        mechanism = LabelHistogram(4000, 0.5, relation)
        labels = np.repeat(np.arange(4000), 3)
        deviations[relation] = noise_of(mechanism, labels, 5) - 3
        scale = relation.changes / 0.5
        assert np.abs(deviations[relation]).mean() == pytest.approx(scale, rel=0.06)
    assert np.abs(deviations[REPLACE]).mean() > 1.8 * np.abs(deviations[ADD_REMOVE]).mean()


@given(st.lists(st.integers(-3, 12)), st.integers(0, 12))
def test_one_record_moves_the_label_counts_by_its_sensitivity(labels: list[int], other: int) -> None:
    before, added = count_labels(labels, 10), count_labels([*labels, other], 10)
    assert l1(before, added) <= 1
    if labels:
        assert l1(before, count_labels([other, *labels[1:]], 10)) <= 2


@given(st.lists(st.integers(-3, 12)))
def test_arrays_and_lists_count_alike(labels: list[int]) -> None:
    assert count_labels(labels, 10) == count_labels(np.array(labels, dtype=np.int64), 10)


ODD_FLOATS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-1, 2))


@given(st.lists(ODD_FLOATS, min_size=6, max_size=6), st.lists(ODD_FLOATS, min_size=6, max_size=6), st.integers(-1, 5))
def test_one_record_moves_the_feature_table_by_exactly_its_declared_mass(
    first: list[float], second: list[float], label: int
) -> None:
    mechanism = FeatureHistogram(4, 3, 6, 1.0)
    base = np.array([[0.5] * 6]), np.array([1])
    one = np.array([[0.5] * 6, first]), np.array([1, label])
    other = np.array([[0.5] * 6, second]), np.array([1, label])
    added = l1(mechanism._counts(*base), mechanism._counts(*one))
    assert added == (6 if 0 <= label < 4 else 0)
    assert l1(mechanism._counts(*one), mechanism._counts(*other)) <= 12


def test_feature_table_gives_the_label_histogram_for_free() -> None:
    mechanism = FeatureHistogram(5, 4, 12, epsilon=1000)
    payload = mechanism.answer((FEATURES, LABELS), NoiseSource(SeededSource(1))).payload
    assert mechanism.label_counts(payload) == pytest.approx([6.0] * 5, abs=0.5)


def l1(first: list[int], second: list[int]) -> int:
    return sum(abs(a - b) for a, b in zip(first, second, strict=True))


def test_update_noise_follows_from_the_clip_norm_alone() -> None:
    for clip_norm in (0.01, 1.0, 50.0):
        mechanism = ClippedUpdate({"w": (40_000,)}, clip_norm, 2.0)
        zero = mechanism.decode(mechanism.answer({"w": np.zeros(40_000)}, NoiseSource(SeededSource(2))).payload)["w"]
        assert zero.std() == pytest.approx(2.0 * clip_norm, rel=0.02)


def test_update_cost_is_sensitivity_over_noise() -> None:
    assert ClippedUpdate(SHAPES, 3.0, 2.0, ADD_REMOVE).cost.mu_squared_nano == 250_000_000
    assert ClippedUpdate(SHAPES, 3.0, 2.0, REPLACE).cost.mu_squared_nano == 1_000_000_000


def test_update_survives_the_trip_up_to_noise_and_grid() -> None:
    mechanism = ClippedUpdate(SHAPES, 1.0, Fraction(1, 1000), grid_bits=24)
    decoded = mechanism.decode(mechanism.answer(UPDATE, NoiseSource(SeededSource(3))).payload)
    assert {name: tensor.shape for name, tensor in decoded.items()} == SHAPES
    np.testing.assert_allclose(decoded["weight"], UPDATE["weight"], atol=0.006)


def test_noised_coordinate_beyond_the_width_is_clamped_not_wrapped() -> None:
    from privacy.packing import pack_array, unpack_array

    values = np.array([2**40, -(2**40), 5, -5])
    assert unpack_array(pack_array(values, 3), 4, 3).tolist() == [2**23 - 1, -(2**23), 5, -5]


@given(st.lists(st.integers(-(2**80), 2**80)), st.integers(1, 8))
def test_packing_two_ways_agrees(values: list[int], width: int) -> None:
    from privacy.packing import pack, pack_array, unpack, unpack_array

    limit = 2**63 - 1
    bounded = [max(-limit, min(limit, value)) for value in values]
    packed = pack(bounded, width)
    assert packed == pack_array(np.array(bounded, dtype=np.int64), width)
    assert unpack(packed, len(bounded), width) == unpack_array(packed, len(bounded), width).tolist()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_randomised_response_tells_the_truth_as_often_as_epsilon_allows(epsilon: float) -> None:
    mechanism = RandomizedResponse(10, epsilon)
    assert mechanism.probability_of_truth == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + 9), rel=1e-12)
    noise = NoiseSource(SeededSource(f"rr {epsilon}"))
    told = np.array([mechanism.decode(mechanism.answer(7, noise).payload) for _ in range(8_000)])
    assert (told == 7).mean() == pytest.approx(mechanism.probability_of_truth, abs=0.02)
    assert np.bincount(told, minlength=10)[[0, 3, 9]].min() > 0


def test_randomised_response_never_exceeds_its_ratio_in_exact_arithmetic() -> None:
    from mpmath import mp

    mp.prec = 300
    for epsilon in (Fraction(1, 10), Fraction(1), Fraction(23, 7)):
        mechanism = RandomizedResponse(3, epsilon)
        booked = Fraction(mechanism.epsilon)
        exact = mp.exp(mp.mpf(booked.numerator) / booked.denominator)
        assert mp.mpf(mechanism.weight_of_truth) / 2**64 <= exact


def test_scalar_is_noised_by_the_whole_range() -> None:
    mechanism = BoundedScalar(-1.0, 3.0, 2.0)
    noise = NoiseSource(SeededSource("scalar"))
    values = np.array([mechanism.decode(mechanism.answer(0.5, noise).payload) for _ in range(4_000)])
    assert np.abs(values - 0.5).mean() == pytest.approx(4.0 / 2.0, rel=0.08)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LabelHistogram(0, 1.0),
        lambda: LabelHistogram(3, 0),
        lambda: LabelHistogram(3, -1.0),
        lambda: LabelHistogram(3, math.nan),
        lambda: LabelHistogram(3, math.inf),
        lambda: LabelHistogram(3, "one"),
        lambda: FeatureHistogram(3, 0, 5, 1.0),
        lambda: FeatureHistogram(3, 2, 5, 1.0, low=1.0, high=1.0),
        lambda: RandomizedResponse(1, 1.0),
        lambda: BoundedScalar(1.0, 0.0, 1.0),
        lambda: BoundedScalar(0.0, math.inf, 1.0),
        lambda: ClippedUpdate(SHAPES, 0.0, 1.0),
        lambda: ClippedUpdate(SHAPES, math.nan, 1.0),
        lambda: ClippedUpdate(SHAPES, 1.0, 0.0),
        lambda: ClippedUpdate(SHAPES, 1e-13, 1.0),
        lambda: ClippedUpdate(SHAPES, 1.0, 1.0, grid_bits=40),
        lambda: DiscreteGaussian(5000, 1.0, 1.0),
    ],
)
def test_senseless_terms_are_refused_before_anything_is_booked(make: Any) -> None:
    with pytest.raises(InvalidTerms, match="nothing was booked"):
        make()


@pytest.mark.parametrize(
    ("mechanism", "data"),
    [
        (LabelHistogram(3, 1.0), np.zeros((2, 2), dtype=np.int64)),
        (LabelHistogram(3, 1.0), np.array([0.5])),
        (FeatureHistogram(3, 2, 5, 1.0), (np.zeros((4, 6)), np.zeros(4, dtype=np.int64))),
        (FeatureHistogram(3, 2, 5, 1.0), (np.zeros((4, 5)), np.zeros(3, dtype=np.int64))),
        (RandomizedResponse(3, 1.0), "two"),
        (BoundedScalar(0, 1, 1.0), "half"),
        (ClippedUpdate(SHAPES, 1.0, 1.0), {"weight": np.zeros((4, 3))}),
        (ClippedUpdate({"w": (2,)}, 1.0, 1.0), {"w": np.zeros(2, dtype=np.complex128)}),
        (DiscreteGaussian(4, 1.0, 1.0), np.zeros(5)),
    ],
)
def test_data_of_another_public_form_are_refused(mechanism: Any, data: Any) -> None:
    with pytest.raises(InvalidTerms, match="nothing was booked"):
        mechanism.check(data)


def test_epsilon_means_what_was_written() -> None:
    assert LabelHistogram(3, 0.1).epsilon == Fraction(1, 10)
    assert LabelHistogram(3, "1/3").epsilon == Fraction(333_333, 1_000_000)  # down: never less noise than booked
    assert ClippedUpdate(SHAPES, 1.0, "1/3").noise_multiplier == Fraction(333_334, 1_000_000)  # up


def test_payload_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidTerms, match="same terms"):
        LabelHistogram(3, 1.0).decode(b"\0" * 23)
