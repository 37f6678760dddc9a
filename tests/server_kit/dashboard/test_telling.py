"""What is told of a step is made of counts and medians, and nothing of one device."""

from __future__ import annotations

import json

import pytest
import torch

from server_kit.daemon.telling import Homes, change_told, selection_mix, step_told
from server_kit.federation import Change
from server_kit.interfaces import DeviceView, Merge, RoundOutcome, Split
from server_kit.store.protocol import FoldRecord

FOLD = FoldRecord("0.1", 4, ("a", "b"), 100.0)


def outcome(**others):
    return RoundOutcome(round=5, selected=("ada", "bo", "cy"), arrived=("ada", "bo"), duration_seconds=7.25, **others)


def test_a_step_tells_counts_size_and_mix():
    told = step_told(FOLD, outcome(), 12, {"new": 1, "back": 2, "again": 0})
    assert (told.kind, told.cohort, told.at_seconds) == ("round", "0.1", 100.0)
    assert told.facts == {
        "round": 5,
        "selected": 3,
        "arrived": 2,
        "devices": 12,
        "seconds": 7.25,
        "mix": {"new": 1, "back": 2, "again": 0},
    }


def test_nobody_is_named():
    told = step_told(FOLD, outcome(losses={"ada": 0.1, "bo": 0.3}, latencies_seconds={"ada": 1.0, "bo": 3.0}), 12, {})
    assert not any(name in json.dumps(told.facts) for name in ("ada", "bo", "cy"))
    assert (told.facts["loss"], told.facts["answer_seconds"], told.facts["slow_answer_seconds"]) == (0.2, 2.0, 3.0)


def test_what_one_device_says_is_not_told_as_if_it_were_many():
    told = step_told(FOLD, outcome(losses={"ada": 0.1}, latencies_seconds={"ada": 1.0}), 12, {})
    assert not {"loss", "answer_seconds", "slow_answer_seconds"} & set(told.facts)


def test_what_the_server_tested_itself_counts_more():
    told = step_told(FOLD, outcome(losses={"ada": 0.1, "bo": 0.3}, loss=0.7, accuracy=0.9), 12, {})
    assert (told.facts["loss"], told.facts["accuracy"]) == (0.7, 0.9)


@pytest.mark.parametrize(("count", "slow"), [(2, 2.0), (10, 9.0), (11, 10.0), (100, 90.0)])
def test_nine_of_ten_answered_within_the_slow_time(count, slow):
    took = {str(number): float(number) for number in range(1, count + 1)}
    assert step_told(FOLD, outcome(latencies_seconds=took), 1, {}).facts["slow_answer_seconds"] == slow


def test_the_mix_tells_new_ones_from_those_who_come_back():
    views = {
        "ada": DeviceView("ada", participations=3, last_round=4),
        "bo": DeviceView("bo", participations=1, last_round=2),
        "cy": DeviceView("cy"),
    }
    assert selection_mix(outcome(), views) == {"new": 1, "back": 1, "again": 1}


def test_a_device_counts_where_it_worked_last():
    homes = Homes()
    homes.note(["ada", "bo"], "0.0")
    homes.note(["bo", "cy"], "0.1")
    assert (homes.size("0.0"), homes.size("0.1"), homes.size("0.2")) == (1, 2, 0)


def test_a_split_tells_how_many_went_where():
    split = Split("0", 2, {"ada": 0, "bo": 1, "cy": 1}, reason="they differ")
    told = change_told(Change(split, ("0.0", "0.1")), 9.0)
    assert (told.kind, told.facts) == ("split", {"children": ["0.0", "0.1"], "why": "they differ", "sizes": [1, 2]})


def test_a_merge_tells_into_what():
    told = change_told(Change(Merge("0.1", torch.zeros(1), reason="alike")), 9.0)
    assert (told.kind, told.cohort, told.facts) == ("merge", "0.1", {"children": [], "why": "alike"})
