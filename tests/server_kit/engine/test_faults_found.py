"""Faults that were found once, each with the least that showed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from server_kit.aggregation import CasaDecay, NormBound
from server_kit.clustering import OnlineKMeans
from server_kit.formation import Bipartition, Founding, Gated, Online, Spectral
from server_kit.formation.clusterers import RandomLabels
from server_kit.formation.split_rules import FixedRounds
from server_kit.formation.summaries import FirstUpdates
from server_kit.interfaces import CheckIn, Merge, Split
from server_kit.matching import Assigned
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names, rng, seen
from tests.server_kit.engine.test_federation import Planned, halves
from tests.server_kit.engine.test_gated import Seeing
from tests.server_kit.engine.worlds import people, run, small, world


def play(formation: Any, devices: int = 8, **more: Any) -> Play:
    now = Play(Strategy("open", formation=formation, matcher=Assigned(), **more), ScriptedFleet(names(devices)))
    now.federation.memory["assigned"] = dict.fromkeys(names(devices), "0")
    return now


def test_the_pause_after_a_merge_ends_even_if_a_split_is_asked_for_in_every_step():
    now = play(Gated(Seeing({("0", number): halves(names(8)) for number in range(99)}), steps=2, pause=5))
    happened = [type(change.decision) for _ in range(30) for change in now.round()]
    assert happened.count(Split) > 1


def test_a_gate_around_a_formation_that_wants_no_updates_still_asks_devices():
    now = play(Gated(Planned({("0", 2): halves(names(8))}), steps=2))
    now.fleet.prefers = lambda device, models: 1
    for _ in range(8):
        now.round()
    assert len(now.federation.leaves) == 2


def test_a_child_that_nobody_visits_does_not_keep_a_bad_split_alive():
    now = play(Gated(Seeing({("0", 2): Split("0", 3, dict.fromkeys(names(4), 0) | dict.fromkeys(names(8)[4:], 1))}), 2))
    for _ in range(20):
        now.round()
    assert now.federation.leaves == ["0"]


def test_a_forged_sub_cluster_does_not_reach_a_split():
    online = Online(rule=FixedRounds((3,)), start_round=9, clusterer=OnlineKMeans())
    now = Play(Strategy("auxo", formation=online), ScriptedFleet(names(6)))
    now.fleet.requests = {device: CheckIn(device, "0", 7 if device == "d0" else 0) for device in names(6)}
    for _ in range(5):
        for change in now.round():
            assert isinstance(change.decision, Split)
            assert set(change.decision.members.values()) <= {0, 1}


def test_a_forged_sub_cluster_does_not_end_a_run():
    online = Online(rule=FixedRounds(()), start_round=1, centres="labelled")
    now = Play(Strategy("auxo", formation=online), ScriptedFleet(names(6)))
    for _ in range(2):
        now.fleet.requests = {"d0": CheckIn("d0", "0", 7)}
        now.round()


class _Away:
    """Nobody is there for the first minute."""

    def draw(self, num_devices: int, seed: int) -> Any:
        return self

    def available(self, devices: Any, time_seconds: float) -> Any:
        return np.full(len(devices), time_seconds >= 60)


@pytest.mark.parametrize("name", ["fedgroup", "oracle"])
def test_groups_are_founded_though_nobody_was_there_at_first(name):
    assert len(run(name, people(availability=_Away()), small(6)).points[-1].cohorts) > 1


def test_founders_of_one_kind_pre_train_once():
    one_kind: Any = RandomLabels(1)
    formation = Founding(FirstUpdates(), one_kind)
    now = Play(Strategy("one kind", formation=formation, matcher=Assigned()), ScriptedFleet(names(4)))
    now.federation.begin()
    now.round()
    assert now.fleet.asked_for_summaries == [tuple(names(4))]


def test_a_newcomer_of_cfl_gets_a_home():
    now = Play(Strategy("cfl", formation=Bipartition(), matcher=Assigned()), ScriptedFleet(names(4)))
    now.federation.begin()
    now.fleet.devices.append("late")
    now.round()
    assert "late" in now.federation.memory["assigned"]


def test_after_a_merge_old_updates_are_not_looked_at():
    formation = Spectral(sketch=None)
    now = play(formation, 6, aggregator=CasaDecay(), buffer=1)
    for device in names(6):
        step = seen({device: [1.0, 0, 0, 0]}, versions=[0], mixing_rate=0.9)
        formation.look(step, now.federation.clustering("0"), now.federation, rng())
    now.federation._apply(halves(names(6)))
    now.federation._apply(Merge("0", torch.zeros(SIZE)))
    assert now.federation.clustering("0") == {}


def test_a_norm_bound_around_casa_is_still_casa():
    bounded = NormBound(CasaDecay(), 1.0)
    assert getattr(bounded, "cohort_alpha", None) is not None
    assert getattr(bounded, "inherited", None) is not None


def test_casa_decays_with_the_size_of_its_population():
    with world("casa", people(devices=12)) as now:
        now.go_on(3)
        assert now.state.cohorts["0"].aggregation["population"] == 12


def test_oort_knows_how_many_records_a_device_has():
    with world("oort", settings=small(2, 12)) as now:
        now.go_on()
        assert all(view.samples for view in now.state.views.values())


@pytest.mark.parametrize(("participants", "leaves"), [(2, 1), (3, 3)])
def test_a_split_for_which_there_are_no_places_is_not_made(participants, leaves):
    now = play(Planned({("0", 1): Split("0", 3)}))
    now.federation.plan = replace(now.federation.plan, participants=participants)
    now.round()
    assert len(now.federation.leaves) == leaves
