"""Where privacy leaves nothing to judge by, children start apart at random, if devices can say which one is theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from server_kit.clustering import KMeans
from server_kit.formation import Discovery, Gated
from server_kit.formation.discovery import label_spread
from server_kit.formation.gated import steadiness
from server_kit.formation.summaries import AsTheyAre, LabelHistograms
from server_kit.interfaces import Merge, Split
from server_kit.matching import OwnChoice
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names


def sign(device: str) -> int:
    return 1 if int(device[1:]) % 2 else -1


def nearest(device: str, models: torch.Tensor) -> int:
    """Devices of two kinds: each wants the model that went furthest its way."""
    return int((models[:, 0] * sign(device)).argmax())


def play(
    honesty: float = 1.0,
    labels: bool = False,
    renew_steps: int | None = None,
    prefers: Callable[[str, torch.Tensor], int] = nearest,
    row: Callable[[str], list[float]] = lambda device: [float(sign(device))] * SIZE,
    **settings: object,
) -> Play:
    fleet = ScriptedFleet(names(20), prefers=prefers, honesty=honesty)
    fleet.delta = lambda device, order: [float(sign(device))] * SIZE
    fleet.row = row
    found = {"summarizer": LabelHistograms(), "distance": AsTheyAre(), "clusterer": KMeans(2)} if labels else {}
    discovery = Discovery(**{"blind_groups": 2, "steps": 3, **found, **settings})  # type: ignore[arg-type]
    gated = Gated(discovery, steps=2, least_repeats=30, most_repeats=100)
    now = Play(Strategy("blind", formation=gated, matcher=OwnChoice(renew_steps)), fleet)
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


def test_they_do_not_with_too_few_devices_for_each_child():
    assert splits(play(blind_groups=4)) == [0]
    assert splits(play(blind_groups=5)) == []


def test_they_do_not_where_labels_differ_without_making_groups():
    def told(row: Callable[[str], list[float]]) -> list[int]:
        return splits(play(labels=True, clusterer=KMeans(1), row=row))

    assert told(lambda device: [30.0 + int(device[1:]) % 3] * SIZE) == [0]
    assert told(lambda device: [100.0 * (place == int(device[1:]) % SIZE) for place in range(SIZE)]) == []


@pytest.mark.parametrize("noise_scale", [None, 2.0])
def test_labels_drawn_alike_spread_as_chance_and_noise_explain(noise_scale):
    rng = np.random.default_rng(3)
    sizes = rng.integers(40, 400, 300)
    noise = rng.laplace(0, noise_scale or 1e-9, (300, 4))

    def spread(shares):
        counts = [rng.multinomial(size, share) for size, share in zip(sizes, shares, strict=True)]
        return label_spread(torch.from_numpy(np.array(counts) + noise), noise_scale)

    assert spread([[0.4, 0.3, 0.2, 0.1]] * 300) == pytest.approx(1.0, abs=0.15)
    assert spread(rng.dirichlet([2.0] * 4, 300)) > 4


def test_nobody_is_asked_more_to_judge_a_blind_start_and_steady_devices_keep_it():
    now = play(renew_steps=2)
    assert splits(now, 30) == [0]
    assert not now.federation.memory.get("trials")
    assert not now.federation.memory["trials by choices"], "it was judged"
    assert now.federation.leaves == ["0.0", "0.1"]


def merged(now: Play) -> tuple[Merge, list[torch.Tensor]]:
    """How a blind start is undone, and the children's models a step before."""
    for _ in range(30):
        before = [now.federation.model(leaf).clone() for leaf in now.federation.leaves]
        for change in now.round():
            if isinstance(change.decision, Merge):
                return change.decision, before
    raise AssertionError("it was not undone")


def test_a_blind_start_among_devices_that_choose_anew_each_time_is_undone():
    chance = np.random.default_rng(0)
    now = play(renew_steps=2, prefers=lambda device, models: int(chance.integers(len(models))))
    merge, _ = merged(now)
    assert merge.cohort == "0"
    assert "chose anew" in merge.reason
    assert splits(now, 20) == []
    assert now.federation.leaves == ["0"]


def test_devices_that_never_choose_alike_are_not_watched_for_long():
    last: dict[str, int] = {}

    def other(device: str, models: torch.Tensor) -> int:
        last[device] = 1 - last.get(device, int(device[1:]) // 2 % 2)
        return last[device]

    now, again = play(renew_steps=2, prefers=other), []
    assert splits(now, 1) == [0]
    while now.federation.leaves != ["0"]:
        again.append(len(now.federation.memory.get("chosen", {}).get("again", [])))
        now.round()
    assert 20 <= max(again) < 60, "not before enough have chosen again, and long before most_repeats"


def test_starts_that_take_long_to_part_are_waited_for():
    def late(device: str, models: torch.Tensor) -> int:
        own = nearest(device, models)
        sure = len(now.federation.memory["chosen"]["again"]) > 25 or chance.random() < 0.8
        return own if sure else 1 - own

    chance = np.random.default_rng(0)
    now = play(renew_steps=2, prefers=late)
    now.federation.memory["chosen"] = {"again": []}
    assert splits(now, 30) == [0]
    assert not now.federation.memory["trials by choices"], "it was judged"
    assert now.federation.leaves == ["0.0", "0.1"]


def test_where_all_want_one_child_the_others_leave_no_trace_in_what_is_merged():
    now = play(renew_steps=2, prefers=lambda device, models: 1)
    now.fleet.delta = lambda device, order: [0.0] * SIZE
    merge, (unwanted, wanted) = merged(now)
    assert torch.allclose(merge.model, wanted)
    assert not torch.allclose(merge.model, unwanted)


CROSSED = [["0.0", "0.0"], ["0.0", "0.1"], ["0.1", "0.0"], ["0.1", "0.1"]]
KEPT = [["0.0", "0.0"], ["0.1", "0.1"]]


def test_steadiness_is_what_is_left_when_chance_is_taken_out():
    assert steadiness(KEPT * 24)[0] == 1.0
    assert steadiness(CROSSED * 12)[0] == 0.0
    assert steadiness((CROSSED + KEPT * 2) * 8)[0] == pytest.approx(0.5)
    assert steadiness(KEPT[:1] * 48) == (0.0, 0.0)
