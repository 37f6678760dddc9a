"""When an answer comes says next to nothing of the data it was made from.

Attack: compare when the answers of two devices come, one with few records and one with many or slow ones; ask for
several models and look when the second is fetched; set a deadline that only a device with few records can keep.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from device_sdk.answer_schedule import AnswerSchedule, Timetable
from device_sdk.trainers import Evaluation, LocalUpdate, TrainerError
from device_sdk.wire.cancelling import Stop
from tests.device_sdk.runtime.asking import MODELS
from tests.hostile.device.witness import witnessed

pytestmark = pytest.mark.integration

FIRST_SECONDS = 1.0
SLOW_SECONDS = 0.5
NEAR_SECONDS = 0.25
"""What a busy machine may add to a tick, and less than what the slow records take."""


class Takes:
    """An app whose records take so long, and for which being stopped is as good as done."""

    def __init__(self, seconds):
        self._seconds = seconds

    def train(self, weights, settings, between_batches):
        self._work(between_batches)
        return LocalUpdate({name: np.zeros_like(part) for name, part in weights.items()})

    def evaluate(self, weights, between_batches):
        self._work(between_batches)
        return Evaluation(1.0, 0.5)

    def _work(self, between_batches):
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            between_batches()
            time.sleep(0.01)


def came_after(home, seconds, *, first_seconds=FIRST_SECONDS, asked=None, deadline_seconds=600.0):
    """How long after the check-in each message of a device came, and what is seen of it."""
    with witnessed(home, rounds=0 if asked else 1) as witness:
        witness.asking.asked = [{"models": MODELS, "deadline_seconds": deadline_seconds}] if asked else []
        witness.federation.altered = lambda task: replace(task, deadline_seconds=deadline_seconds)
        device = witness.federation.enrolled(home, schedule={"first_seconds": first_seconds})
        try:
            witness.sees(device, Takes(seconds), 1)
        finally:
            with suppress(TrainerError):
                device.close()
        names = [sight[0] for sight in witness.seen]
        began = witness.times[names.index("check_in")]
        timed = zip(witness.seen, witness.times, strict=True)
        return [(sight[:2], at - began) for sight, at in timed if sight[0] in {"announce", "blob", "decline"}]


def looks_alike(one, other):
    """Whether the same things came, each at about the same time."""
    same = [what for what, _ in one] == [what for what, _ in other]
    return same and all(abs(a - b) < NEAR_SECONDS for (_, a), (_, b) in zip(one, other, strict=True))


@pytest.mark.parametrize("asked", [False, True], ids=["training", "a question about three models"])
def test_slow_records_are_seen_at_the_same_tick_as_quick_ones(tmp_path, asked):
    quick, slow = (came_after(tmp_path / str(seconds), seconds, asked=asked) for seconds in (0.0, SLOW_SECONDS))
    assert looks_alike(quick, slow), (quick, slow)
    assert quick[-1][1] >= FIRST_SECONDS
    assert [what for (what, *_), _ in quick].count("blob") == (3 if asked else 1)


@pytest.mark.parametrize("asked", [False, True], ids=["training", "a question about three models"])
def test_without_a_schedule_slow_records_are_seen(tmp_path, asked):
    """The broken twin: an answer leaves when it is done."""
    at_once = {"first_seconds": 0, "asked": asked}
    quick, slow = (came_after(tmp_path / str(seconds), seconds, **at_once) for seconds in (0.0, SLOW_SECONDS))
    assert not looks_alike(quick, slow)


@pytest.mark.parametrize("asked", [False, True], ids=["training", "a question about three models"])
def test_a_deadline_that_is_too_short_for_slow_records_is_answered_in_time_all_the_same(tmp_path, asked):
    short = {"first_seconds": 2.0, "deadline_seconds": 2.0, "asked": asked}
    quick, slow = came_after(tmp_path / "quick", 0.0, **short), came_after(tmp_path / "slow", 60.0, **short)
    assert looks_alike(quick, slow), (quick, slow)
    assert 1.7 < slow[-1][1] < 2.0 + NEAR_SECONDS


class FailsFromTheSecond(Takes):
    """An app that trains for a while, and from the second round on fails at once."""

    rounds = 0

    def train(self, weights, settings, between_batches):
        self.rounds += 1
        if self.rounds > 1:
            raise ValueError
        return super().train(weights, settings, between_batches)


def pauses_between_rounds(home):
    """How long a device took that fails from the second round on, from one update to the next."""
    with witnessed(home, rounds=3) as witness:
        device = witness.federation.enrolled(home, schedule={"first_seconds": 0.25})
        try:
            witness.sees(device, FailsFromTheSecond(0.6), 3)
        finally:
            with suppress(TrainerError):
                device.close()
        timed = zip(witness.seen, witness.times, strict=True)
        came = [at for sight, at in timed if sight[0] == "announce"]
        return [later - earlier for earlier, later in pairwise(came)]


def test_a_round_that_fails_takes_as_long_as_the_ones_before(tmp_path):
    assert all(1.0 <= pause < 1.0 + NEAR_SECONDS for pause in pauses_between_rounds(tmp_path / "home"))


def test_a_failure_that_is_told_when_it_happens_is_seen(tmp_path, monkeypatch):
    """The broken twin: what fails leaves at the first tick."""
    monkeypatch.setattr(Timetable, "as_usual", lambda self: None)
    assert min(pauses_between_rounds(tmp_path / "home")) < 1.0


class Ticking(Stop):
    """A clock that only waiting moves; nobody sets it."""

    now = 100.0

    def __call__(self):
        return self.now

    def wait(self, timeout_seconds=None):
        self.now += timeout_seconds
        return False


@pytest.mark.parametrize(
    ("took", "left_after"),
    [(0.0, 0.25), (0.2, 0.25), (0.3, 0.5), (0.5, 0.5), (5.0, 8.0), (30.0, 32.0), (80.0, 90.0), (95.0, 95.0)],
)
def test_an_answer_leaves_at_the_first_tick_that_its_work_allows(took, left_after):
    clock = Ticking()
    timetable = AnswerSchedule(0.25, clock, clock).begin(100.0)
    clock.now += took
    timetable.wait()
    assert clock.now - 100.0 == pytest.approx(left_after)


def test_what_fails_at_once_leaves_as_late_as_what_went_well():
    clock = Ticking()
    schedule = AnswerSchedule(0.25, clock, clock)
    for took, has_failed, left_after in ((3.0, False, 4.0), (0.1, True, 4.0), (5.0, True, 8.0), (0.1, False, 0.25)):
        timetable, came = schedule.begin(100.0, "training"), clock.now
        clock.now += took
        if has_failed:
            timetable.as_usual()
        timetable.wait()
        assert clock.now - came == pytest.approx(left_after)


def test_waiting_ends_at_once_when_the_device_is_told_to_stop(tmp_path):
    with witnessed(tmp_path / "home", rounds=1) as witness:
        device = witness.federation.enrolled(tmp_path / "home", schedule={"first_seconds": 3600})
        run = device.start(Takes(0.0))
        stored = threading.Event()
        until = time.monotonic() + 20
        while device.status().rounds != {"released": 1} and time.monotonic() < until:
            stored.wait(0.02)
        began = time.monotonic()
        assert run.stop(20)
        assert run.error is None
        assert time.monotonic() - began < 10
        assert witness.num("announce") == 0
        # The same bytes are sent by the next run, and at once: they are made already.
        assert device.run(Takes(0.0), rounds=1, timeout_seconds=20) == 1
        assert witness.num("accept") == 1
        device.close()
