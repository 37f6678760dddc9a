"""Where privacy leaves nothing to judge by, children start apart at random, if devices can say which one is theirs."""

from __future__ import annotations

import torch

from server_kit.clustering import KMeans
from server_kit.formation import Discovery, Gated
from server_kit.formation.summaries import AsTheyAre, LabelHistograms
from server_kit.interfaces import Split
from server_kit.matching import OwnChoice
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names


def sign(device: str) -> int:
    return 1 if int(device[1:]) % 2 else -1


def nearest(device: str, models: torch.Tensor) -> int:
    """Devices of two kinds: each wants the model that went furthest its way."""
    return int((models[:, 0] * sign(device)).argmax())


def play(honesty: float = 1.0, labels: bool = False, **settings: object) -> Play:
    fleet = ScriptedFleet(names(20), prefers=nearest, honesty=honesty)
    fleet.delta = lambda device, order: [float(sign(device))] * SIZE
    fleet.row = lambda device: [float(sign(device))] * SIZE
    found = {"summarizer": LabelHistograms(), "distance": AsTheyAre(), "clusterer": KMeans(2)} if labels else {}
    discovery = Discovery(**{"blind_groups": 2, "steps": 3, **found, **settings})  # type: ignore[arg-type]
    now = Play(Strategy("blind", formation=Gated(discovery, steps=2), matcher=OwnChoice()), fleet)
    now.federation.begin()
    return now


def splits(now: Play, rounds: int = 8) -> list[int]:
    """In which rounds there was a split."""
    return [number for number in range(rounds) for change in now.round() if isinstance(change.decision, Split)]


def test_children_start_apart_after_the_first_step_and_devices_sort_themselves():
    now = play()
    assert splits(now) == [0]
    assert now.federation.homes(["d0", "d2", "d1", "d3"]) == ["0.0", "0.0", "0.1", "0.1"]


def test_they_do_not_where_choices_are_told_wrongly_too_often():
    assert splits(play(honesty=0.89)) == []
    assert splits(play(honesty=0.9)) == [0]
    assert splits(play(honesty=0.5, least_candour=0.5)) == [0]


def test_they_do_not_unless_asked_for():
    assert splits(play(blind_groups=0)) == []


def test_groups_by_labels_come_first_and_take_their_time():
    now = play(labels=True)
    assert splits(now) == [2]
    assert now.federation.suggested


def test_nobody_is_asked_whether_a_blind_start_was_worth_it():
    now = play()
    splits(now)
    assert not now.federation.memory["trials"]
    assert now.federation.leaves == ["0.0", "0.1"]
