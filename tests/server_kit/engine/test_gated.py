"""A split on trial: one that serves nobody better is undone, one that does stays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from server_kit.formation.gated import Gated
from server_kit.interfaces import Merge, Split, Wants
from server_kit.matching import Assigned
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names
from tests.server_kit.engine.test_federation import Planned, halves


@dataclass(frozen=True)
class Seeing(Planned):
    @property
    def wants(self) -> Wants:
        return Wants(updates=True)


def play(
    prefers: Callable[[str, torch.Tensor], int], split: Split | None = None, devices: int = 20, **settings: Any
) -> Play:
    gated = Gated(Seeing({("0", 2): split or halves(names(devices))}), **{"steps": 3, **settings})
    fleet = ScriptedFleet(names(devices), prefers=prefers)
    fleet.delta = lambda device, order: [1.0 if int(device[1:]) % 2 else -1.0] * SIZE
    now = Play(Strategy("gated", formation=gated, matcher=Assigned()), fleet)
    now.federation.memory["assigned"] = dict.fromkeys(names(devices), "0")
    return now


def own(device: str, models: torch.Tensor) -> int:
    """What a device whose data lie far in its own direction would choose: the model that went further that way."""
    target = 100.0 if int(device[1:]) % 2 else -100.0
    return int((models[:, 0] - target).abs().argmin())


def test_a_meaningful_split_stays():
    now = play(own)
    for _ in range(20):
        now.round()
    assert now.federation.leaves == ["0.0", "0.1"]


def test_a_meaningless_split_is_undone_once_each_child_has_had_its_steps():
    now = play(lambda device, models: 0)
    changes = [now.round() for _ in range(6)]
    assert [[type(change.decision) for change in each] for each in changes] == [[], [Split], [], [], [Merge], []]
    assert now.federation.leaves == ["0"]
    assert now.federation.members("0") == names(20)


def test_the_merged_model_is_the_mean_of_the_children():
    now = play(lambda device, models: 0)
    for _ in range(4):
        now.round()
    children = [now.federation.model(leaf).clone() for leaf in now.federation.leaves]
    (change,) = now.round()
    assert isinstance(change.decision, Merge)
    assert children[0][0] == -children[1][0] == -2.0
    assert torch.equal(now.federation.model("0"), torch.zeros(SIZE))


def slow_stays(preferring: int, asked: int, least: float, deviations: float) -> bool:
    share = preferring / asked
    error = math.sqrt(max(share * (1 - share), 1 / asked) / asked)
    return share - deviations * error > least


@pytest.mark.parametrize("preferring", [0, 10, 13, 14, 15, 16, 17, 20])
def test_the_verdict_is_the_share_that_prefers_its_child_with_a_standard_error_to_spare(preferring):
    now = play(lambda device, models: int(int(device[1:]) < preferring), least_share=0.6, deviations=1.0, looks=1)
    for _ in range(6):
        now.round()
    assert (len(now.federation.leaves) == 2) == slow_stays(preferring, 20, 0.6, 1.0)


def merged_after(preferring: Callable[[int], int], **settings: Any) -> int | None:
    """The round in which a split was undone, if so many of 20 devices prefer their child at each look."""
    asked: list[str] = []

    def choose(device: str, models: torch.Tensor) -> int:
        asked.append(device)
        return int(int(device[1:]) < preferring((len(asked) - 1) // 20))

    now = play(choose, least_share=0.6, deviations=1.0, **settings)
    for number in range(16):
        if any(isinstance(change.decision, Merge) for change in now.round()):
            return number
    return None


def test_an_open_verdict_is_put_off_and_what_comes_later_decides():
    assert merged_after(lambda look: 5) == 4, "surely too few"
    assert merged_after(lambda look: [13, 19][look]) is None
    assert merged_after(lambda look: [13, 5][look]) == 7
    assert merged_after(lambda look: [13, 19][look], looks=1) == 4


def test_a_verdict_that_stays_open_is_not_put_off_for_ever():
    assert merged_after(lambda look: 13) == 10


def test_randomised_answers_are_asked_for_once():
    now = play(lambda device, models: int(int(device[1:]) < 13), least_share_randomised=0.6, deviations=1.0)
    now.fleet.honesty = 0.9
    for _ in range(6):
        now.round()
    assert now.federation.leaves == ["0"]


def test_what_randomised_answers_hide_is_taken_out_of_the_verdict():
    # With p = 3/4, a true share of 1 is told as 3/4; taken as it is, that would not be enough.
    now = play(lambda device, models: int(int(device[1:]) < 60), devices=80, least_share=0.7, looks=1)
    for _ in range(6):
        now.round()
    assert len(now.federation.leaves) == 1
    honest = play(lambda device, models: int(int(device[1:]) < 60), devices=80, least_share_randomised=0.7)
    honest.fleet.honesty = 0.75
    for _ in range(6):
        honest.round()
    assert len(honest.federation.leaves) == 2


@pytest.mark.parametrize(("told_least", "leaves"), [(0.6, 2), (0.9, 1)])
def test_randomised_answers_have_a_bar_of_their_own(told_least, leaves):
    # A true share of 1, told with p = 3/4 by 80 devices: 1 with a standard error of 0.1.
    now = play(
        lambda device, models: int(int(device[1:]) < 60),
        devices=80,
        least_share=0.95,
        least_share_randomised=told_least,
    )
    now.fleet.honesty = 0.75
    for _ in range(6):
        now.round()
    assert len(now.federation.leaves) == leaves


def test_only_a_few_of_each_child_are_asked():
    asked: list[str] = []

    def choose(device: str, models: torch.Tensor) -> int:
        asked.append(device)
        return 1

    now = play(choose, asked=4)
    for _ in range(6):
        now.round()
    assert len(asked) == 8


def test_a_device_compares_its_child_with_what_a_merge_would_give():
    compared: list[list[float]] = []

    def choose(device: str, models: torch.Tensor) -> int:
        compared.append(models[:, 0].tolist())
        return 1

    now = play(choose)
    for _ in range(6):
        now.round()
    assert sorted({tuple(each) for each in compared}) == [(0.0, -3.0), (0.0, 3.0)]


def test_a_cohort_that_was_merged_is_left_whole_for_a_while():
    plan = {("0", round_number): halves(names(8)) for round_number in (2, 7, 9, 30)}
    gated = Gated(Seeing(plan), steps=2, pause=10)
    now = Play(Strategy("gated", formation=gated, matcher=Assigned()), ScriptedFleet(names(8)))
    now.federation.memory["assigned"] = dict.fromkeys(names(8), "0")
    happened = []
    for _ in range(40):
        happened += [(type(change.decision), now.state.cohorts["0"].round) for change in now.round()]
    assert happened == [(Split, 2), (Merge, 4), (Split, 30), (Merge, 32)]


def test_without_the_gate_a_meaningless_split_would_stay():
    now = play(lambda device, models: 0)
    now.federation.plan.strategy.__dict__["formation"] = Planned({("0", 2): halves(names(20))})
    for _ in range(20):
        now.round()
    assert len(now.federation.leaves) == 2


def test_it_asks_for_what_its_inner_formation_wants_and_for_choices():
    assert Gated(Seeing()).wants.choices
    assert Gated(Seeing()).wants.updates


def test_a_device_is_asked_about_the_child_that_it_was_in_last():
    now = play(own)
    for _ in range(3):
        now.round()
    # All were out when the cohort split, and brought what they had to one child.
    memory, strangers = now.federation.memory, names(20)[1::2]
    memory["lately"]["0.0"] = [*strangers, *memory["lately"].get("0.0", [])]
    for _ in range(9):
        now.round()
    assert not memory["trials"]
    assert now.federation.leaves == ["0.0", "0.1"]


def test_what_is_remembered_of_devices_does_not_grow_with_rounds():
    now = play(own)
    sizes = []
    for _ in range(60):
        now.round()
        sizes.append(sum(map(len, now.federation.memory["lately"].values())))
    # Each device counts once, in the cohort that it was in last; the list of all visits would have 600 by now.
    assert sizes[-1] <= max(sizes[:20]) <= 20
