"""Killed at any line of a round, a device ends it: one spend, the same bytes, nothing sent twice once acknowledged."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.device_sdk import rounds
from tests.mortal import KILLED, Nursery

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.device_sdk.rounds") as nursery:
        yield nursery


def problems_after_kills(nursery, tmp_path, story, num_kills, *, seed, twice=False, violations=rounds.violations):
    """Kill the story at random lines, let it live on, and yield what is wrong then; `twice`: kill that life as well."""
    chance = random.Random(seed)
    whole = nursery.live(story, fresh(tmp_path / "whole"))
    assert whole.code == 0
    assert violations(tmp_path / "whole") == []
    for line in chance.sample(range(1, whole.lines), num_kills):
        home = fresh(tmp_path / "home")
        assert nursery.live(story, home, kill_at=line).code == KILLED
        if twice:
            nursery.live(story, home, kill_at=chance.randrange(1, whole.lines))
        done, before = rounds.acknowledged(home), rounds.sent(home)
        assert nursery.live(story, home).code == 0, line
        again = {task for task, _ in rounds.sent(home)[len(before) :]}
        yield line, violations(home) + [f"{task} was sent again" for task in sorted(again & done)]
        shutil.rmtree(home)


def fresh(home):
    home.mkdir()
    return home


def test_killed_at_random_lines_every_round_is_ended_and_paid_for_once(nursery, tmp_path):
    for line, problems in problems_after_kills(nursery, tmp_path, "drive", num_kills=25, seed=2026):
        assert problems == [], line


def test_killed_again_while_it_recovers_nothing_is_different(nursery, tmp_path):
    for line, problems in problems_after_kills(nursery, tmp_path, "drive", num_kills=10, seed=2027, twice=True):
        assert problems == [], line


def test_what_was_acknowledged_and_not_yet_written_is_sent_again_and_forgotten_in_the_end(nursery, tmp_path):
    judge = {"seed": 2031, "twice": True, "violations": rounds.violations_without_feedback}
    for line, problems in problems_after_kills(nursery, tmp_path, "drive_without_feedback", 25, **judge):
        assert problems == [], line


def test_a_device_that_closes_a_round_before_that_is_written_is_caught(nursery, tmp_path):
    twin, judge = "drive_closing_before_writing", {"seed": 2032, "violations": rounds.violations_without_feedback}
    kills = problems_after_kills(nursery, tmp_path, twin, 60, **judge)
    assert any("bytes that were kept for nothing" in problems for _, problems in kills)


def test_killed_at_random_moments_every_round_is_ended_and_paid_for_once(nursery, tmp_path):
    chance = random.Random(2030)
    for number in range(10):
        home = fresh(tmp_path / str(number))
        for _ in range(4):
            nursery.live("drive", home, kill_after_seconds=chance.uniform(0.001, 0.1))
        assert nursery.live("drive", home).code == 0
        assert rounds.violations(home) == []


@pytest.mark.stress
def test_killed_a_thousand_times_every_round_is_ended_and_paid_for_once(nursery, tmp_path):
    for line, problems in problems_after_kills(nursery, tmp_path, "drive", num_kills=1000, seed=2028, twice=True):
        assert problems == [], line


@pytest.mark.parametrize(
    ("twin", "fault"),
    [
        ("drive_booking_each_attempt_anew", "a spend without a release of its own"),
        ("drive_learning_before_noting", "feedback learned twice or not at all"),
    ],
)
def test_the_kills_catch_a_broken_device(nursery, tmp_path, twin, fault):
    for _, problems in problems_after_kills(nursery, tmp_path, twin, num_kills=200, seed=2029):
        if fault in problems:
            return
    pytest.fail("two hundred kills did not show what is wrong with this device")
