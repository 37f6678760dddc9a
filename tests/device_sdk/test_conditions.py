"""A device takes part when the app agrees, pauses when it no longer does, and gives up after a while."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from device_sdk.conditions import Conditions, TrainingGate
from device_sdk.trainers.errors import TrainingStopped
from device_sdk.wire.cancelling import Stop


def yes():
    return True


def no():
    return False


def fails():
    raise OSError("canary: serial number 4711 of a person's battery")


class Answers:
    """Answers one after the other, the last for ever."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    def __call__(self):
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Clock:
    """Stands still, or moves by `step` at every look."""

    def __init__(self, step=0.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def gate(conditions, stop=None, **settings):
    return TrainingGate(conditions, stop, **{"ask_every_seconds": 0.001, "patience_seconds": 60.0, **settings})


def test_what_is_not_given_is_not_asked():
    assert Conditions().missing() == ()


@pytest.mark.parametrize("name", ["charging", "unmetered", "idle"])
@pytest.mark.parametrize("answer", [no, fails, lambda: None])
def test_a_no_and_an_error_both_count_as_no(name, answer):
    agreed: dict[str, Any] = {name: yes}
    assert Conditions(**agreed).missing() == ()
    refused: dict[str, Any] = {name: answer}
    assert Conditions(**refused).missing() == (name,)


@pytest.mark.parametrize(
    ("level", "enough"),
    [(1.0, True), (0.5, True), (0.49, False), (-0.1, False), (1.1, False), (float("nan"), False), ("full", False)],
)
def test_the_battery_must_hold_enough_and_make_sense(level, enough):
    conditions = Conditions(battery_level=lambda: level, least_battery_level=0.5)
    assert conditions.missing() == (() if enough else ("battery_level",))


def test_a_metered_network_stops_a_round_and_not_its_training():
    conditions = Conditions(unmetered=no)
    assert conditions.missing() == ("unmetered",)
    assert conditions.missing_in_training() == ()


def test_an_error_is_an_event_that_names_its_type_and_nothing_more(events, lines):
    Conditions(charging=fails).missing()
    assert events() == ["condition_failed"]
    assert lines() == ['device_sdk WARNING condition_failed {"condition": "charging", "error": "OSError"}']


def test_an_app_that_exits_is_not_taken_for_a_no():
    def leave():
        raise SystemExit

    with pytest.raises(SystemExit):
        Conditions(idle=leave).missing()


def test_training_goes_on_while_the_conditions_hold(events):
    check = gate(Conditions(charging=yes))
    for _ in range(10):
        check()
    assert events() == []


def test_training_pauses_and_resumes(events):
    charging = Answers(False, False, False, True)
    gate(Conditions(charging=charging))()
    assert charging.asked == 4
    assert events() == ["training_paused", "training_resumed"]


def test_training_is_given_up_when_patience_is_over(events):
    check = gate(Conditions(charging=no), patience_seconds=0.0)
    with pytest.raises(TrainingStopped, match="no longer hold"):
        check()
    assert events() == ["training_paused", "training_stopped"]


def test_a_gate_without_patience_would_wait_for_ever():
    """The broken twin of the test above: only patience ends it, so here another thread must."""
    stop = Stop()
    charging = Answers(False)
    check = gate(Conditions(charging=charging), stop, patience_seconds=float("inf"))
    ended = threading.Event()

    def train():
        with pytest.raises(TrainingStopped, match="cancelled"):
            check()
        ended.set()

    thread = threading.Thread(target=train)
    thread.start()
    while charging.asked < 5:
        time.sleep(0.001)
    assert not ended.is_set()
    stop.set()
    thread.join()
    assert ended.is_set()


def test_a_cancelled_training_stops_at_the_next_batch():
    stop = Stop()
    check = gate(Conditions(), stop)
    check()
    stop.set()
    with pytest.raises(TrainingStopped, match="cancelled"):
        check()


def test_the_deadline_stops_training_paused_or_not():
    clock = Clock()
    check = gate(Conditions(), deadline_seconds=10, clock=clock)
    check()
    clock.now = 10
    with pytest.raises(TrainingStopped, match="time for the task"):
        check()
    with pytest.raises(TrainingStopped, match="time for the task"):
        gate(Conditions(charging=no), deadline_seconds=10, clock=Clock(step=1))()


def test_conditions_are_not_asked_at_every_batch():
    charging, clock = Answers(True), Clock()
    check = gate(Conditions(charging=charging), ask_every_seconds=5, clock=clock)
    for second in range(12):
        clock.now = second
        for _ in range(100):
            check()
    assert charging.asked == 3


def test_an_app_can_hold_training_and_let_it_go_on(events):
    check = gate(Conditions(), patience_seconds=0.0, ask_every_seconds=30)
    check.hold()
    thread = threading.Thread(target=check)
    thread.start()
    while "training_paused" not in events():
        time.sleep(0.001)
    assert thread.is_alive()
    check.release()
    thread.join()
    assert events() == ["training_paused", "training_resumed"]
