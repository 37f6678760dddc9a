"""CASA: buffered updates of like age, a split where the eigengap outweighs the mixing rate, and newcomers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from server_kit.aggregation import CasaDecay
from server_kit.clustering import SpectralSplit
from server_kit.formation.spectral import Spectral
from server_kit.interfaces import Look, Split
from server_kit.matching import Assigned
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names, rng, seen

CROSS = 0.3  # cosine between members of different groups
GAP = (3 - 3 * CROSS) / (2 + 3 * CROSS)
"""λ₃ − λ₂ of two groups of three: inside each all alike, across `CROSS`."""


def pull(device: str) -> list[float]:
    """Two groups of devices that are alike inside, with cosine `CROSS` across."""
    one = math.sqrt(1 - CROSS)
    side = [one, 0.0] if int(device[1:]) < 3 else [0.0, one]
    return [*side, math.sqrt(CROSS), 0.0]


class Casa:
    """A cohort of six, looked at step by step."""

    def __init__(self, devices: int = 6, **settings: Any) -> None:
        self.formation = Spectral(sketch=None, **settings)
        strategy = Strategy("casa", formation=self.formation, aggregator=CasaDecay(), matcher=Assigned(), buffer=1)
        self.play = Play(strategy, ScriptedFleet(names(devices), delta=lambda device, order: pull(device)))
        self.play.federation.begin()

    def look(self, device: str, update: list[float], rate: float = 0.1, version: int = 0, cohort: str = "0") -> Look:
        step = seen({device: update}, cohort=cohort, versions=[version], mixing_rate=rate)
        memory = self.play.state.cohorts[cohort].clustering
        return self.formation.look(step, memory, self.play.federation, rng())

    def everyone(self, rate: float) -> Split | None:
        looks = [self.look(device, pull(device), rate) for device in names(6)]
        assert [look.decision for look in looks[:-1]] == [None] * 5  # nothing before everybody has sent something
        decision = looks[-1].decision
        assert decision is None or isinstance(decision, Split)
        return decision


@pytest.mark.parametrize(("rate", "splits"), [(GAP - 0.01, True), (GAP + 0.01, False), (0.01, True)])
def test_a_cohort_splits_when_the_mixing_rate_falls_below_the_gap(rate, splits):
    split = Casa().everyone(rate)
    assert (split is not None) == splits
    if split is not None:
        assert [split.members[device] for device in names(6)] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("exponent", "rate", "splits"), [(2.0, GAP**2 + 0.01, False), (2.0, GAP**2 - 0.01, True)])
def test_the_exponent_makes_it_stricter(exponent, rate, splits):
    assert (Casa(exponent=exponent).everyone(rate) is not None) == splits


def test_members_that_are_alike_stay_together():
    casa = Casa()
    looks = [casa.look(device, [1.0, 0.01 * number, 0, 0], 0.001) for number, device in enumerate(names(6))]
    assert all(look.decision is None for look in looks)


def test_a_cohort_is_looked_at_once_for_each_of_its_members():
    casa = Casa()
    assert casa.everyone(0.99) is None
    looks = [casa.look("d0", pull("d0"), 0.001) for _ in range(6)]
    assert [look.decision is not None for look in looks] == [False] * 5 + [True]


def test_what_is_compared_is_of_like_age():
    # The fast ones have turned since; at the version where the slow ones are, they were unlike them.
    casa = Casa()
    for device in names(3):
        casa.look(device, [1, 0, 0, 0], version=0)
    for device in names(3):
        casa.look(device, [0, 1, 0, 0], version=50)
    decisions = [casa.look(device, [0, 1, 0, 0], version=0).decision for device in names(6)[3:]]
    split = decisions[-1]
    assert isinstance(split, Split)
    assert [split.members[device] for device in names(6)] == [0, 0, 0, 1, 1, 1]


def test_a_buffer_keeps_the_latest():
    casa = Casa(kept=2)
    for version in range(5):
        casa.look("d0", [float(version + 1), 0, 0, 0], version=version)
    buffered = casa.play.federation.clustering("0")["buffers"]["d0"]
    assert [entry["version"] for entry in buffered] == [3, 4]


def test_with_a_quorum_the_slowest_are_not_waited_for_and_are_not_lost():
    casa = Casa(7, quorum=0.8)
    for _ in range(2):
        decisions = [casa.look(device, pull(device)).decision for device in names(6)]
    split = next(decision for decision in decisions if isinstance(decision, Split))
    assert set(split.members) == set(names(6))
    casa.play.federation._apply(split)
    assert sum(len(casa.play.federation.members(leaf)) for leaf in casa.play.federation.leaves) == 7


def test_no_child_is_smaller_than_allowed():
    assert Casa(splitter=SpectralSplit(min_members=4)).everyone(0.01) is None


class TestNewcomers:
    def after_split(self) -> Casa:
        casa = Casa()
        split = casa.everyone(0.01)
        assert split is not None
        casa.play.federation._apply(split)
        for device in names(6):
            casa.look(device, pull(device), cohort=casa.play.federation.memory["assigned"][device])
        return casa

    def test_a_newcomer_waits_in_the_largest_cohort(self):
        casa = self.after_split()
        assigned = casa.play.federation.memory["assigned"]
        assigned["d0"] = "0.1"
        casa.formation.welcome(["new"], casa.play.federation, rng())
        assert assigned["new"] == "0.1"

    @pytest.mark.parametrize(("like", "home"), [("d0", "0.0"), ("d5", "0.1")])
    def test_its_first_update_decides_where_it_belongs(self, like, home):
        casa = self.after_split()
        federation = casa.play.federation
        casa.formation.welcome(["new"], federation, rng())
        casa.look("new", pull(like), cohort=federation.memory["assigned"]["new"])
        assert federation.memory["assigned"]["new"] == home
        casa.look("new", [-value for value in pull(like)], cohort=home)
        assert federation.memory["assigned"]["new"] == home  # once


def test_whole_runs_split_and_reset_the_clock():
    strategy = Strategy(
        "casa",
        formation=Spectral(sketch=None),
        aggregator=CasaDecay(alpha=0.5),
        matcher=Assigned(),
        buffer=1,
    )
    now = Play(strategy, ScriptedFleet(names(6), delta=lambda device, order: pull(device)), participants=6)
    now.federation.begin()
    while len(now.federation.leaves) == 1:
        for order in now.invite():
            now.answer(order)
            for leaf in now.federation.due(now.now):
                now.federation.fold(leaf, now.now)
        assert now.state.steps < 40
    assert sorted(map(sorted, (now.federation.members(leaf) for leaf in now.federation.leaves))) == [
        names(6)[:3],
        names(6)[3:],
    ]
    assert now.state.cohorts["0"].aggregation["merges"] >= 6
    assert all(now.state.cohorts[leaf].aggregation.get("merges", 0) < 6 for leaf in now.federation.leaves)
    assert len(now.federation.model("0.0")) == SIZE
