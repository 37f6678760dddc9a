"""The control: devices that are alike are never split, by any rule that claims to look for differences."""

from __future__ import annotations

import pytest

from server_kit.local_task import LocalTask
from server_kit.simulation.device_speeds import FactorSpeeds
from server_kit.simulation.partition import Equal, Iid, LabelPermutationGroups
from tests.server_kit.engine.worlds import people, run, small

ALIKE = Iid(Equal(30))
TWO_KINDS = LabelPermutationGroups(2, ALIKE)
SETTINGS = {
    "auxo": small(24, 20, evaluate_every=24, task=LocalTask(0.1, epochs=2)),
    "casa": small(24, 20, evaluate_every=24, task=LocalTask(0.1, epochs=2)),
    "covey": small(24, 20, evaluate_every=24, task=LocalTask(0.1, epochs=2)),
    "cfl": small(26, 40, evaluate_every=26, task=LocalTask(0.3, epochs=5)),
}


def cohorts(name, partition, seed=0, overrides=None):
    """How many there are in the end, and what happened to them on the way."""
    population = people(partition, 40, seed=seed, speeds=FactorSpeeds())
    ended = run(name, population, SETTINGS[name], seed, overrides)
    return len(ended.points[-1].cohorts), [happening.kind for happening in ended.happenings]


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_devices_that_are_alike_are_not_split(name):
    assert cohorts(name, ALIKE) == (1, [])


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_devices_that_differ_are(name):
    assert cohorts(name, TWO_KINDS)[0] > 1


def test_without_the_check_that_the_sides_are_unlike_cfl_splits_devices_that_are_alike():
    assert cohorts("cfl", ALIKE, overrides={"formation": {"gamma_max": 0.0}})[0] > 1


def test_at_fixed_rounds_auxo_splits_devices_that_are_alike():
    fixed = {"formation": {"rule": {"kind": "fixed_rounds", "rounds": [5]}}}
    assert cohorts("auxo", ALIKE, overrides=fixed)[0] > 1


@pytest.mark.parametrize("clusters", [2, 4])
def test_flhc_splits_into_as_many_as_it_is_told_whatever_the_data(clusters):
    told = {"formation": {"at_round": 2, "clusterer": {"clusters": clusters}}}
    ended = run("flhc", people(ALIKE, 20), small(4, 10), overrides=told)
    assert len(ended.points[-1].cohorts) == clusters
