"""The built-in worlds hold neighbours only: anything further apart would convict honest mechanisms."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from privacy.auditing import BUILT_IN, audit, built_in
from privacy.auditing.worlds import World, worlds_of
from privacy.budget import NeighbouringRelation
from privacy.errors import InvalidTerms
from privacy.mechanisms import ClippedUpdate, FeatureHistogram, LabelHistogram
from privacy.randomness import NoiseSource, SeededSource

RELATIONS = list(NeighbouringRelation)
ADD_REMOVE = NeighbouringRelation.ADD_REMOVE


def records_of(data) -> Counter:
    """The records of a data set as a bag; repr, because NaN differs from itself."""
    if isinstance(data, tuple):
        features, labels = data
        return Counter(repr((row.tolist(), int(label))) for row, label in zip(features, labels, strict=True))
    return Counter(map(repr, data))


def are_neighbours(world: World, relation: NeighbouringRelation) -> bool:
    first, second = records_of(world.first), records_of(world.second)
    removed, added = (first - second).total(), (second - first).total()
    if relation is NeighbouringRelation.ADD_REMOVE:
        return removed + added == 1
    return removed == added == 1


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["label_histogram", "feature_histogram"])
def test_worlds_of_records_differ_by_one_record(name, relation):
    worlds = worlds_of(built_in(name, relation=relation))
    assert len(worlds) >= 4
    assert all(are_neighbours(world, relation) for world in worlds)


def test_data_further_apart_are_not_taken_for_neighbours():
    assert not are_neighbours(World("two more", [0], [0, 1, 1]), ADD_REMOVE)
    assert not are_neighbours(World("two others", [0, 0], [1, 1]), NeighbouringRelation.REPLACE)
    assert not are_neighbours(World("one more", [0], [0, 1]), NeighbouringRelation.REPLACE)


@pytest.mark.parametrize("name", ["clipped_update", "discrete_gaussian"])
def test_worlds_of_devices_compare_with_nothing_unless_contributions_may_be_replaced(name):
    for world in worlds_of(built_in(name, relation="add_remove")):
        first = world.first if isinstance(world.first, np.ndarray) else world.first["weights"]
        assert not first.any()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_an_honest_mechanism_answers_in_every_world(name, relation):
    mechanism = built_in(name, relation=relation)
    noise = NoiseSource(SeededSource(0))
    for world in worlds_of(mechanism):
        for data in (world.first, world.second):
            mechanism.check(data)
            assert len(mechanism.answer(data, noise).payload) == len(mechanism.answer(world.first, noise).payload)


class NoNoise:
    """Shows what lies under the noise."""

    seeded = True

    def discrete_laplace_vector(self, scale, size):
        return [0] * size


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "mechanism", [LabelHistogram(3, 1), FeatureHistogram(3, 4, 5, 1, low=-2.0, high=7.0)], ids=lambda each: each.name
)
def test_the_centres_are_what_would_be_released_without_noise(mechanism, relation):
    mechanism = type(mechanism)(**{**vars(mechanism), "relation": relation})
    for world in worlds_of(mechanism):
        assert world.centres is not None
        for data, centre in zip((world.first, world.second), world.centres, strict=True):
            bare = mechanism.decode(mechanism.answer(data, NoNoise()).payload)
            assert np.ravel(bare).tolist() == list(centre)


def test_a_pair_that_are_no_neighbours_convicts_an_honest_mechanism():
    two_records = [World("two records more", [], [0, 0])]
    report = audit(LabelHistogram(1, 1, ADD_REMOVE), two_records, trials=2_000, seed=0)
    assert report.exceeds_claim
    assert report.lower_bound > 1.5


def test_a_mechanism_of_another_name_may_bring_its_worlds():
    class Renamed(LabelHistogram):
        name = "my_histogram"

    with pytest.raises(InvalidTerms, match="neighbouring_worlds"):
        worlds_of(Renamed(2, 1))
    assert worlds_of(Renamed(2, 1), "label_histogram") == worlds_of(LabelHistogram(2, 1))

    class WithWorlds(Renamed):
        def neighbouring_worlds(self):
            return [World("mine", [0], [1])]

    assert [world.name for world in worlds_of(WithWorlds(2, 1))] == ["mine"]


def test_an_update_without_coordinates_is_refused():
    with pytest.raises(InvalidTerms, match="hides nothing"):
        worlds_of(ClippedUpdate({}, 1, 1))


def test_the_worlds_hold_what_breaks_careless_code():
    labels = [world.second for world in worlds_of(built_in("label_histogram"))]
    assert any(isinstance(label, float) and math.isnan(label) for data in labels for label in data)
    updates = [world.second["weights"] for world in worlds_of(built_in("clipped_update"))]
    assert any(np.isnan(update).any() for update in updates)
    assert any(np.isinf(update).any() for update in updates)
    assert any(np.abs(update).max() > 1e299 for update in updates)
