"""Killed at any line of a round, a device ends it: one spend, one release, the same bytes, counted once."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.device_sdk.runtime import lives
from tests.mortal import KILLED, Nursery

pytestmark = pytest.mark.integration

PAID_TWICE = {"it did not recover", "a spend without a release of its own"}
"""The journal refuses another request for a round that it knows to be booked; before it knows, the ledger pays."""


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.device_sdk.runtime.lives") as nursery:
        yield nursery


def problems_after_kills(nursery, tmp_path, story, num_kills, *, seed, twice=False):
    """Kill the story at random lines, let it live on, and yield what is wrong then; `twice`: kill that life as well."""
    chance = random.Random(seed)
    whole = tmp_path / "whole"
    whole.mkdir()
    # Lives differ by a few lines, and each is to be killed before its end.
    lines = nursery.live("drive", whole).lines * 9 // 10
    assert lives.violations(whole) == []
    for line in chance.sample(range(1, lines), num_kills):
        home = tmp_path / "home"
        home.mkdir()
        assert nursery.live(story, home, kill_at=line).code == KILLED
        if twice:
            nursery.live(story, home, kill_at=chance.randrange(1, lines))
        ended = nursery.live(story, home)
        yield line, lives.violations(home) if ended.code == 0 else ["it did not recover"]
        shutil.rmtree(home)


def test_killed_at_random_lines_every_round_is_ended_and_paid_for_once(nursery, tmp_path):
    for line, problems in problems_after_kills(nursery, tmp_path, "drive", num_kills=20, seed=2026):
        assert problems == [], line


def test_killed_again_while_it_recovers_nothing_is_different(nursery, tmp_path):
    for line, problems in problems_after_kills(nursery, tmp_path, "drive", num_kills=6, seed=2027, twice=True):
        assert problems == [], line


@pytest.mark.stress
def test_killed_hundreds_of_times_every_round_is_ended_and_paid_for_once(nursery, tmp_path):
    for line, problems in problems_after_kills(nursery, tmp_path, "drive", num_kills=400, seed=2028, twice=True):
        assert problems == [], line


@pytest.mark.parametrize(
    ("twin", "faults"),
    [
        ("drive_paying_for_each_attempt", PAID_TWICE),
        ("drive_paying_for_each_answer", PAID_TWICE),
        ("drive_learning_whatever_is_said", {"feedback learned twice or not at all"}),
    ],
)
def test_the_kills_catch_a_broken_device(nursery, tmp_path, twin, faults):
    for _, problems in problems_after_kills(nursery, tmp_path, twin, num_kills=60, seed=2029):
        if faults & set(problems):
            return
    pytest.fail("sixty kills did not show what is wrong with this device")
