"""Killed at any line of a round, a device ends it: one spend, one release, the same bytes, counted once."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.device_sdk.runtime import lives
from tests.mortal import KILLED, Nursery

pytestmark = pytest.mark.integration

PAID_TWICE = {"it did not recover", "a spend without a release of its own"}
"""A journal that takes another request than it accepted pays for both, or cannot tell what became of the first."""


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
        again = chance.randrange(1, lines) if twice else None
        yield line, problems_after(nursery, tmp_path / "home", story, line, again)


def problems_after(nursery, home, story, line, again=None):
    """What is wrong after a life killed at this line, perhaps one killed `again`, and one that ends by itself."""
    home.mkdir()
    assert nursery.live(story, home, kill_at=line).code == KILLED
    if again is not None:
        nursery.live(story, home, kill_at=again)
    ended = nursery.live(story, home)
    problems = lives.violations(home) if ended.code == 0 else ["it did not recover"]
    shutil.rmtree(home)
    return problems


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


@pytest.mark.parametrize("twin", ["drive_paying_for_each_attempt", "drive_paying_for_each_answer"])
def test_a_device_that_pays_for_each_try_is_caught_by_a_kill_between_booking_and_knowing_of_it(nursery, tmp_path, twin):
    (tmp_path / "whole").mkdir()
    lines = nursery.live(twin, tmp_path / "whole").lines
    problems = (problems_after(nursery, tmp_path / "home", twin, line) for line in range(1, lines))

    assert any(PAID_TWICE & set(found) for found in problems)


def test_a_device_that_learns_whatever_is_said_is_caught_by_kills_anywhere(nursery, tmp_path):
    twin = "drive_learning_whatever_is_said"
    kills = problems_after_kills(nursery, tmp_path, twin, num_kills=60, seed=2029)

    assert any("feedback learned twice or not at all" in problems for _, problems in kills)
