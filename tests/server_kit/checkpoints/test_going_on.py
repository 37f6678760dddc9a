"""A federation that is taken up again from its checkpoints goes on as if nothing had happened, whatever its preset."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from server_kit.checkpoints import (
    OF_FEDERATION,
    Checkpoints,
    of_cohort,
    pack_cohort,
    pack_federation,
    pack_folded,
    unpack,
    unpack_cohort,
    unpack_federation,
    unpack_folded,
)
from server_kit.cohort_tree import CohortTree
from server_kit.federation_state import FederationState
from server_kit.folding import Folded
from server_kit.round import CohortState
from server_kit.simulation.availability import DropOut
from server_kit.simulation.device_speeds import FactorSpeeds
from server_kit.store.blobs import LocalBlobs
from tests.server_kit.engine.test_invariants import EAGER, TOGETHER
from tests.server_kit.engine.worlds import people, same, small, world

OF_THE_STORE = ("asked", "missed", "arrived", "opened_at_seconds", "needed")
"""What a worker learns from the store about the round that is open."""
_ONLINE = {"start_round": 1, "clusterer": {"min_participants": 2}}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    # Every preset, with settings under which its memories are filled within a few rounds, ...
    **{name: (name, EAGER.get(name, {})) for name in TOGETHER},
    "tifl": ("tifl", {"selector": {"interval": 1, "tiers": 2}}),
    "fedbuff": ("fedbuff", {"aggregator": {"momentum": 0.5}, "buffer": 3}),
    # ... and parts that no preset has, or not with such settings.
    "auxo by evidence": ("auxo", {"formation": {**_ONLINE, "rule": {"kind": "evidence", "rounds": 1, "signal": -9.0}}}),
    "auxo by ratio": ("auxo", {"formation": {**_ONLINE, "rule": {"kind": "paper_ratio"}}}),
    "fedgroup that mixes": ("fedgroup", {"mixing": "inter_group"}),
}

Spoil = Callable[[FederationState], None]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(LocalBlobs(tmp_path / "blobs"), tmp_path / "scratch")


def taken_up(state: FederationState, checkpoints: Checkpoints) -> FederationState:
    """All processes put their part away and die; others read it, and from the store what only the store knows."""
    named = {
        cohort: checkpoints.write(of_cohort(cohort), each.version, pack_cohort(each))
        for cohort, each in state.cohorts.items()
    }
    federation = checkpoints.write(OF_FEDERATION, state.steps, pack_federation(state))
    cohorts = {}
    for cohort, name in named.items():
        known = {each: copy.deepcopy(getattr(state.cohorts[cohort], each)) for each in OF_THE_STORE}
        cohorts[cohort] = replace(unpack_cohort(checkpoints.read(name)), **known)
    resumed = unpack_federation(checkpoints.read(federation), cohorts)
    return replace(resumed, views=copy.deepcopy(state.views), out=copy.deepcopy(state.out))


def end_of(
    name: str, seed: int, checkpoints: Checkpoints | None = None, every: int = 3, spoil: Spoil = lambda _: None
) -> Any:
    """How a run ends that is stopped and taken up again after every so many events, or never."""
    population = people(devices=10, seed=seed, speeds=FactorSpeeds(), availability=DropOut(0.2, 0.5), affinity_loss=0.1)
    preset, overrides = RUNS[name]
    with world(preset, population, small(5), seed, overrides) as now:
        for number in now.events():
            if checkpoints is not None and (number + seed) % every == 0:
                now.federation.state = taken_up(now.state, checkpoints)
                spoil(now.state)
        return now.photograph()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_taken_up_from_checkpoints_ends_in_the_same_bits(name, checkpoints):
    assert same(end_of(name, 0), end_of(name, 0, checkpoints))


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", RUNS)
def test_every_moment_is_a_good_one_to_stop(name, seed, checkpoints):
    assert same(end_of(name, seed), end_of(name, seed, checkpoints, every=1))


def test_no_part_of_the_state_is_nobodys():
    cohort, federation = CohortState("0", torch.zeros(1)), FederationState(CohortTree(), {})
    of_a_worker, of_the_coordinator = unpack(pack_cohort(cohort)), unpack(pack_federation(federation))
    assert {each.name for each in fields(cohort)} == {*of_a_worker, *OF_THE_STORE, "clustering"}
    assert {each.name for each in fields(federation)} == {
        *(of_the_coordinator.keys() - {"children", "born"}),
        "tree",
        "views",
        "out",
    }


def without_optimiser(state: FederationState) -> None:
    for cohort in state.cohorts.values():
        cohort.aggregation.clear()


def without_structure(state: FederationState) -> None:
    for cohort in state.cohorts.values():
        cohort.clustering.clear()


def without_selection(state: FederationState) -> None:
    for cohort in state.cohorts.values():
        cohort.selection.clear()


def without_claims(state: FederationState) -> None:
    state.claims.clear()


def without_order(state: FederationState) -> None:
    table = state.memory["assigned"]
    state.memory["assigned"] = {device: table[device] for device in sorted(table, reverse=True)}


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("fedyogi", without_optimiser),
        ("auxo", without_optimiser),
        ("auxo", without_structure),
        ("auxo", without_claims),
        ("covey", without_structure),
        ("tifl", without_selection),
        ("casa", without_order),
    ],
)
def test_a_checkpoint_that_forgets_is_caught(name, spoil, checkpoints):
    assert not same(end_of(name, 0), end_of(name, 0, checkpoints, spoil=spoil))


@pytest.mark.parametrize("name", ["auxo", "casa", "covey", "haccs"])
def test_what_a_step_showed_reaches_the_coordinator_as_it_was(name, checkpoints, monkeypatch):
    through_files: list[bool] = []
    with world(name, settings=small(3), overrides=RUNS[name][1]) as now:
        digest = now.federation.digest

        def digest_from_file(folded: Folded) -> Any:
            read = unpack_folded(checkpoints.read(checkpoints.write("report", len(through_files), pack_folded(folded))))
            through_files.append(same(folded, read))
            return digest(read)

        monkeypatch.setattr(now.federation, "digest", digest_from_file)
        now.go_on()
    assert len(through_files) >= 3
    assert all(through_files)
