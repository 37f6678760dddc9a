"""Whatever happens in whatever order: no accepted update is lost or counted twice, and the federation goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_kit.daemon.cohort_worker import CohortWorker
from server_kit.store.keys import StoreKeys
from server_kit.store.memory import MemoryStore
from server_kit.store.opening import open_store
from server_kit.store.protocol import TaskState
from server_kit.store.sql_store import SqlStore
from tests.server_kit.daemon.fault_world import WORLDS, World


def lived(
    directory: Path, name: str, seed: int, deeds: int = 120, store: MemoryStore | SqlStore | None = None
) -> World:
    """A world after so many deeds and its recovery."""
    world = World(directory / f"{name} {seed}", name, seed, store or MemoryStore())
    try:
        world.run(deeds)
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", WORLDS)
def test_no_update_is_lost_or_doubled_whoever_dies_when(tmp_path, name, seed):
    assert lived(tmp_path, name, seed).thanked


@pytest.mark.parametrize("name", ["rounds", "buffers that split and merge", "newcomers train first"])
def test_nor_on_a_durable_store(tmp_path, name):
    store = open_store(f"sqlite:///{tmp_path}/store.db", StoreKeys.generate(), tmp_path / "bytes")
    assert lived(tmp_path, name, 0, store=store).thanked
    store.close()


def test_a_step_that_is_done_while_another_is_learned_from_is_merged_with_it(tmp_path):
    """Its model was left out if it was done after the coordinator had looked for steps and before it read the rows."""
    assert lived(tmp_path, "shared places", 1005, deeds=200).thanked


class CountsAgain(MemoryStore):
    """An update that was folded waits on."""

    def _scrub(self, name, state):
        if state is not TaskState.FOLDED:
            super()._scrub(name, state)


class LetsTheSlowerWin(MemoryStore):
    """A record that was read before the last step takes the place of what the step made."""

    def _check_versions(self, cohorts):
        del cohorts


class KeepsWhatTheDeadBegan(MemoryStore):
    """A cohort that ends takes the updates of its begun step with it."""

    def _undo(self, cohorts):
        del cohorts


class ThanksTooEarly(MemoryStore):
    """Nothing of a release is kept but the word that it was."""

    def _keep_update(self, device, header, content, now_seconds):
        del device, header, content, now_seconds


@pytest.mark.parametrize(
    ("twin", "name", "seed"),
    [
        (CountsAgain, "rounds", 0),
        (LetsTheSlowerWin, "buffers", 2),
        (KeepsWhatTheDeadBegan, "buffers that split and merge", 22),
        (ThanksTooEarly, "rounds", 0),
    ],
)
def test_a_broken_store_is_caught(tmp_path, twin, name, seed):
    def live_on() -> None:
        for each in range(seed, seed + 40):
            lived(tmp_path, name, each, store=twin())

    with pytest.raises(AssertionError):
        live_on()


def test_a_worker_that_leaves_late_updates_to_a_step_that_never_comes_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(CohortWorker, "_end_late", lambda *_: None)

    with pytest.raises(AssertionError, match="waits for ever"):
        lived(tmp_path, "rounds", 0)
