"""What holds between any two events of any run, whatever the preset: nobody is lost, nothing is given out twice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.aggregation import CasaDecay, FedAsync
from server_kit.cohort_tree import parent_of
from server_kit.interfaces import CheckIn, Matcher
from server_kit.parts import PARTS
from server_kit.presets import PRESETS
from server_kit.round import Ticket
from server_kit.simulation.availability import DropOut
from server_kit.simulation.changes import Newcomers, Shift
from server_kit.simulation.device_speeds import FactorSpeeds
from server_kit.simulation.local_training import key_of
from tests.server_kit.engine.scripted import rng
from tests.server_kit.engine.worlds import World, people, same, small, world

TOGETHER = sorted(name for name in PRESETS if not PRESETS[name].get("alone"))
_SPECTRAL = {"kind": "spectral", "splitter": {"min_members": 1}, "quorum": 0.5, "exponent": 0.1}
_BIPARTITION = {
    "gamma_max": 0.0,
    "mean_norm_below": 9.0,
    "largest_norm_above": 0.0,
    "after_round": 1,
    "quorum": 0.5,
    "least_members": 2,
}
EAGER: dict[str, dict[str, Any]] = {
    # Settings with which cohorts split and merge within a few rounds, with or without reason.
    "auxo": {
        "formation": {
            "rule": {"kind": "fixed_rounds", "rounds": [2, 4]},
            "start_round": 1,
            "clusterer": {"min_participants": 2},
        }
    },
    "casa": {"formation": {"inner": _SPECTRAL, "steps": 3, "pause": 5}},
    "casa_plus": {"formation": {"inner": _SPECTRAL, "steps": 3, "pause": 5}},
    "cfl": {"formation": _BIPARTITION},
    "cfl_async": {"formation": _BIPARTITION},
    "flhc": {"formation": {"at_round": 2}},
    "covey": {"formation": {"inner": {"steps": 2, "least_members": 1, "signal": -9.0, "most_left": 9.0}, "steps": 2}},
}


def check(now: World) -> None:
    """Every invariant at once."""
    state, leaves = now.state, list(now.federation.leaves)
    assert leaves
    assert all(leaf in state.cohorts and state.tree.is_leaf(leaf) for leaf in leaves)
    everyone_has_one_home(now, leaves)
    everything_out_is_expected_once(now, leaves)
    places_are_not_exceeded(now, leaves)
    for leaf in leaves:
        cohort = state.cohorts[leaf]
        assert bool(torch.isfinite(cohort.model).all())
        assert all(0 <= ticket.staleness <= cohort.version for ticket in cohort.arrived)
        assert all(asked.version <= cohort.version for asked in (cohort.asked | cohort.missed).values())


def everyone_has_one_home(now: World, leaves: list[str]) -> None:
    devices = now.population.devices
    with now.fleet.in_private():
        homes = now.federation.homes(devices)
    assert len(homes) == len(devices)
    assert set(homes) <= set(leaves)
    assert set(now.federation.memory.get("assigned", {}).values()) <= set(leaves)


def everything_out_is_expected_once(now: World, leaves: list[str]) -> None:
    cohorts = [now.state.cohorts[leaf] for leaf in leaves]
    for device, leaf in now.state.out.items():
        assert leaf in leaves
        assert [device in cohort.asked or device in cohort.missed for cohort in cohorts].count(True) == 1
        assert device in now.state.cohorts[leaf].asked or device in now.state.cohorts[leaf].missed
    arrived = [key_of(ticket) for cohort in cohorts for ticket in cohort.arrived]
    assert len(arrived) == len(set(arrived))
    assert set(now.fleet.expected) == set(now.state.out)
    assert set(now.fleet.delivered) == set(arrived)


def places_are_not_exceeded(now: World, leaves: list[str]) -> None:
    plan = now.federation.plan
    strategy, places = plan.strategy, plan.participants
    if strategy.is_asynchronous:
        assert len(now.state.out) <= places
        return
    working = sum(len(now.state.cohorts[leaf].asked) + len(now.state.cohorts[leaf].arrived) for leaf in leaves)
    if strategy.shares_places:
        assert working <= math.ceil(places * strategy.over_commit)
    else:
        assert len(leaves) * strategy.pace(places, len(leaves)).arrivals <= places


@pytest.mark.parametrize("name", TOGETHER)
def test_the_invariants_hold_between_all_events(name):
    with world(name, people(devices=10), small(5), overrides=EAGER.get(name)) as now:
        check(now)
        for _ in now.events():
            check(now)
        assert now.fleet.round >= 5


@settings(max_examples=20)
@given(
    name=st.sampled_from(TOGETHER),
    seed=st.integers(0, 99),
    devices=st.integers(1, 14),
    participants=st.integers(1, 6),
    away=st.sampled_from([0.0, 0.3, 0.7]),
    deadline=st.sampled_from([None, 0.25, 2.0]),
    moving=st.booleans(),
)
def test_the_invariants_hold_whoever_comes_and_goes(*, name, seed, devices, participants, away, deadline, moving):
    population = people(
        devices=devices,
        seed=seed,
        speeds=FactorSpeeds(),
        availability=DropOut(away, 0.3),
        newcomers=(Newcomers(0.3, 2),) if moving else (),
        shifts=(Shift(0.5, 3, label_shift=1),) if moving else (),
        affinity_loss=0.2,
    )
    overrides = dict(EAGER.get(name, {}))
    if deadline is not None and "buffer" not in PRESETS[name]:
        overrides["deadline_seconds"] = deadline
    with world(name, population, small(5, participants, max_seconds=3600.0), seed, overrides) as now:
        for _ in now.events(150):
            check(now)


@pytest.mark.parametrize("name", [name for name in TOGETHER if name in EAGER])
def test_children_are_born_as_their_parent_is(name):
    births = 0
    with world(name, people(devices=10), small(8), overrides=EAGER[name]) as now:
        before = set(now.state.tree.children)
        for _ in now.events():
            for parent in set(now.state.tree.children) - before:
                births += 1
                born_alike(now, parent)
            before = set(now.state.tree.children)
    assert births > 0


def born_alike(now: World, parent: str) -> None:
    old = now.state.cohorts[parent]
    strategy = now.federation.plan.strategy
    for child in now.state.tree.children[parent]:
        new = now.state.cohorts[child]
        assert (new.version, new.round) == (old.version, old.round)
        assert new.model.data_ptr() != old.model.data_ptr()
        if strategy.name != "covey":  # whose children start where their founders were heading
            assert torch.equal(new.model, old.model)
        expected = old.aggregation
        if isinstance(strategy.aggregator, CasaDecay):  # whose clock begins anew
            expected = {"population": old.aggregation["population"]}
        assert same(new.aggregation, expected)
        assert same(new.selection, old.selection)
        for name, value in new.aggregation.items():
            assert not isinstance(value, torch.Tensor) or value.data_ptr() != old.aggregation[name].data_ptr()


def test_the_check_catches_a_lost_device():
    with world("fedavg") as now:
        now.go_on(2)
        now.state.out.pop(next(iter(now.state.out)))
        with pytest.raises(AssertionError):
            check(now)


def test_the_check_catches_an_answer_that_nobody_waits_for():
    with world("fedasync") as now:
        now.go_on(3)
        idle = next(device for device in now.population.devices if device not in now.fleet.expected)
        now.state.cohorts["0"].arrived.append(Ticket(idle, 0, 0))
        with pytest.raises(AssertionError):
            check(now)


def test_the_check_catches_a_table_that_leads_nowhere():
    with world("fedgroup") as now:
        now.state.tree = now.state.tree.merge("0")
        with pytest.raises(AssertionError):
            check(now)


IDS = st.one_of(
    st.none(),
    st.text("0.12x/-", max_size=12),
    st.lists(st.integers(-1, 3), min_size=1, max_size=6).map(lambda path: ".".join(map(str, path))),
)


@settings(max_examples=60)
@given(
    cohort=IDS, sub_cluster=st.none() | st.integers(-5, 99), reward=st.floats(allow_nan=True), seed=st.integers(0, 9)
)
def test_whatever_a_device_asks_for_it_lands_in_a_living_leaf(living, cohort, sub_cluster, reward, seed):
    for federation, matcher in living.values():
        (home,) = matcher.match([CheckIn("3", cohort, sub_cluster, reward)], federation, rng(seed))
        assert home in list(federation.leaves)


@pytest.fixture(scope="module")
def living():
    """Federations whose root has split, one of its children too, and another has been merged back."""
    with world("fedgroup") as now:
        tree = now.state.tree
        now.state.tree = tree.split("0.0", 2).split("0.1", 3).merge("0.1").split("0.0.1", 2)
        for leaf in now.state.tree.leaves():
            now.state.cohorts.setdefault(leaf, now.state.cohorts["0"])
        yield {name: (now.federation, matcher()) for name, matcher in PARTS[Matcher].items()}


@given(
    staleness=st.lists(st.integers(0, 10_000), max_size=30),
    members=st.integers(0, 100_000),
    merges=st.integers(0, 10**7),
    alpha=st.floats(0, 1),
)
def test_mixing_rates_stay_between_nothing_and_all(staleness, members, merges, alpha):
    memory = {"staleness": staleness, "members": members, "merges": merges}
    casa = CasaDecay(alpha=alpha)
    assert 0 <= casa.cohort_alpha(memory) <= 1
    for each in (0, 1, 7, 10_000):
        assert 0 <= casa.device_alpha(each, memory) <= casa.cohort_alpha(memory)
        for decay in ("constant", "polynomial", "hinge"):
            assert 0 <= alpha * FedAsync(alpha, decay).freshness(each) <= 1


def test_a_split_leaves_nobody_behind():
    with world("cfl", people(devices=10), small(8), overrides=EAGER["cfl"]) as now:
        table = now.federation.memory["assigned"]
        everybody = set(table)
        for _ in now.events():
            assert set(table) == everybody
            assert set(table.values()) <= set(now.federation.leaves)
            assert sum(len(now.federation.members(leaf)) for leaf in now.federation.leaves) == len(everybody)
        assert any(parent_of(leaf) for leaf in now.federation.leaves)
