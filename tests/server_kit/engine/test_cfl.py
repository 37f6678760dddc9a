"""CFL: a cohort is cut in two once it has converged on average while its devices have not."""

from __future__ import annotations

from typing import Any

import pytest

from server_kit.formation.bipartition import Bipartition
from server_kit.interfaces import Look, Memory, Split
from server_kit.matching import Assigned
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import Play, ScriptedFleet, names, rng, seen


def opposed(mean: float, spread: float) -> dict[str, list[float]]:
    """Six devices: their mean update is `mean` long, each is about `spread` long, three this way and three that."""
    return {device: [mean, spread if number < 3 else -spread, 0.0, 0.0] for number, device in enumerate(names(6))}


class Cfl:
    def __init__(self, devices: int = 6, **settings: Any) -> None:
        self.formation = Bipartition(**settings)
        strategy = Strategy("cfl", formation=self.formation, matcher=Assigned(), budget="shared")
        self.play = Play(strategy, ScriptedFleet(names(devices)))
        self.play.federation.begin()
        self.memory: Memory = {}

    def look(self, updates: dict[str, list[float]], round_number: int = 30) -> Look:
        return self.formation.look(seen(updates, round_number), self.memory, self.play.federation, rng())


@pytest.mark.parametrize(
    ("mean", "spread", "round_number", "splits"),
    [
        (0.9, 4.0, 30, True),
        (1.1, 4.0, 30, False),  # not converged yet
        (0.9, 2.0, 30, False),  # the devices have converged too
        (0.9, 4.0, 20, False),  # too early
        (0.9, 4.0, 21, True),
    ],
)
def test_the_thresholds_are_shares_of_the_largest_norm_in_the_first_step(mean, spread, round_number, splits):
    cfl = Cfl()
    assert cfl.look(opposed(10.0, 0.0), 1).decision is None  # the largest norm is 10: thresholds are 1 and 3
    assert (cfl.look(opposed(mean, spread), round_number).decision is not None) == splits


@pytest.mark.parametrize(("mean", "splits"), [(0.09, True), (0.11, False)])
def test_absolute_thresholds_are_taken_as_they_are(mean, splits):
    cfl = Cfl(absolute=True, after_round=0)
    cfl.look(opposed(10.0, 0.0), 1)
    assert (cfl.look(opposed(mean, 5.0)).decision is not None) == splits


def test_the_sides_are_those_that_pull_apart():
    cfl = Cfl()
    cfl.look(opposed(10.0, 0.0), 1)
    split = cfl.look(opposed(0.1, 5.0)).decision
    assert isinstance(split, Split)
    assert [split.members[device] for device in names(6)] == [0, 0, 0, 1, 1, 1]


def test_a_second_split_names_members_and_not_their_places():
    cfl = Cfl()
    cfl.look(opposed(10.0, 0.0), 1)
    first = cfl.look(opposed(0.1, 5.0)).decision
    assert first is not None
    cfl.play.federation._apply(first)
    updates = {"d3": [0.1, 5, 0, 0], "d4": [0.1, -2.5, 0, 0], "d5": [0.1, -2.5, 0, 0]}
    second = cfl.formation.look(seen(updates, 31, "0.1"), {}, cfl.play.federation, rng()).decision
    assert isinstance(second, Split)
    assert second.members == {"d3": 0, "d4": 1, "d5": 1}


def test_most_of_the_members_must_have_been_heard():
    cfl = Cfl(quorum=0.9)
    cfl.look(opposed(10.0, 0.0), 1)
    cfl.memory.clear()
    updates = opposed(0.1, 5.0)
    some = {device: updates[device] for device in names(5)}
    assert cfl.look(some).decision is None
    assert cfl.look({"d5": updates["d5"]}).decision is not None  # the others' last updates still count


def test_sides_that_are_alike_are_not_cut():
    # All cosines across are above 0.98; √((1 − 0.98)/2) is 0.1.
    near = {device: [5.0, 0.5 if number < 3 else -0.5, 0, 0] for number, device in enumerate(names(6))}
    settings: dict[str, Any] = {"mean_norm_below": 9.0, "largest_norm_above": 0.1, "after_round": 0}
    assert Cfl(**settings, gamma_max=0.0).look(near).decision is not None
    assert Cfl(**settings).look(near).decision is None


def test_no_more_cohorts_than_allowed():
    cfl = Cfl(most_cohorts=1)
    cfl.look(opposed(10.0, 0.0), 1)
    assert cfl.look(opposed(0.1, 5.0)).decision is None


def test_too_few_to_cut():
    cfl = Cfl(2)
    cfl.look({device: [10.0, 0, 0, 0] for device in names(2)}, 1)
    assert cfl.look({"d0": [0.1, 5, 0, 0], "d1": [0.1, -5, 0, 0]}).decision is None
