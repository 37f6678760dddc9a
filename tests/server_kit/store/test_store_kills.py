"""Killed at any line or moment, a server leaves nothing half done; its next life counts every update once."""

from __future__ import annotations

import random
import shutil
from contextlib import closing

import pytest

from tests.mortal import KILLED, Nursery
from tests.server_kit.store.lives import EXPECTED, open_at, violations

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.server_kit.store.lives") as nursery:
        yield nursery


@pytest.fixture
def homes(blank_database, tmp_path):
    """New places for a server, with empty tables."""

    def fresh():
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        shutil.copy(blank_database, home / "server.db")
        return home

    return fresh


def problems(home):
    with closing(open_at(home)) as store:
        return violations(store)


def end_of(home):
    """What is wrong once everything is over."""
    with closing(open_at(home)) as store:
        wrong = violations(store)
        if store.cohorts()[0].checkpoint != str(EXPECTED):
            wrong.append("an update was lost or counted twice")
        store.sweep(older_than_seconds=-10.0)
        if store._blobs.list():
            wrong.append("bytes of folded updates are left")
        return wrong


def after_kills(nursery, homes, kind, num_kills, seed):
    """Kill a life at random lines, look, kill its next life as well, let the third end, and look again."""
    chance = random.Random(seed)
    home = homes()
    whole = nursery.live(kind, home)
    assert whole.code == 0
    assert end_of(home) == []
    for line in chance.sample(range(1, whole.lines), num_kills):
        home = homes()
        assert nursery.live(kind, home, kill_at=line).code == KILLED
        found = problems(home)
        nursery.live(kind, home, kill_at=chance.randrange(1, whole.lines))
        found += problems(home)
        last = nursery.live(kind, home)
        yield line, found + end_of(home) if last.code == 0 else [*found, "the last life failed"]


def test_killed_at_random_lines_nothing_is_half_done(nursery, homes):
    for line, found in after_kills(nursery, homes, "as_it_is", num_kills=15, seed=5):
        assert found == [], line


def test_killed_at_random_moments_nothing_is_half_done(nursery, homes):
    chance = random.Random(6)
    for _ in range(6):
        home = homes()
        for _ in range(4):
            nursery.live("as_it_is", home, kill_after_seconds=chance.uniform(0.001, 0.3))
            assert problems(home) == []
        assert nursery.live("as_it_is", home).code == 0
        assert end_of(home) == []


@pytest.mark.stress
def test_killed_a_thousand_times_nothing_is_half_done(nursery, homes):
    for line, found in after_kills(nursery, homes, "as_it_is", num_kills=1_000, seed=7):
        assert found == [], line


@pytest.mark.parametrize("twin", ["moving_the_cohort_first", "deleting_blobs_first", "accepting_one_by_one"])
def test_the_kills_catch_a_broken_store(nursery, homes, twin):
    assert any(found for _, found in after_kills(nursery, homes, twin, num_kills=150, seed=8))
