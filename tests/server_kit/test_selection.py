"""Every selector keeps one contract; each also does what its paper says."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.interfaces import DeviceView, Memory, RoundOutcome
from server_kit.selection import ClusterWeighted, Oort, OortLite, TiFL, Uniform

ALL = [
    Uniform(),
    ClusterWeighted(),
    ClusterWeighted(draw="with_replacement", rho=0.9),
    ClusterWeighted(explore=0.3),
    Oort(),
    OortLite(),
    TiFL(),
]

VIEWS = st.builds(
    DeviceView,
    device=st.text("abcdef", min_size=1, max_size=6),
    latency_seconds=st.none() | st.floats(0, 100),
    loss=st.none() | st.floats(0, 10),
    samples=st.none() | st.integers(0, 1000),
    last_round=st.none() | st.integers(0, 50),
    cluster=st.none() | st.integers(0, 4),
)
WAITING = st.lists(VIEWS, max_size=30, unique_by=lambda view: view.device)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("selector", ALL, ids=repr)
class TestEverySelector:
    @settings(max_examples=40, deadline=None)
    @given(waiting=WAITING, count=st.integers(0, 35), seed=st.integers(0, 5))
    def test_chooses_different_waiting_devices_as_many_as_asked_or_all(
        self, selector: Any, waiting: list[DeviceView], count: int, seed: int
    ) -> None:
        chosen = selector.select(waiting, count, {}, rng(seed))
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= {view.device for view in waiting}
        if not isinstance(selector, TiFL):  # a tier smaller than the round is taken whole
            assert len(chosen) == min(count, len(waiting))
        assert len(chosen) <= max(count, 0)

    def test_same_seed_same_choice(self, selector: Any) -> None:
        waiting = population(40)
        memory: Memory = {}
        assert selector.select(waiting, 8, copy.deepcopy(memory), rng(3)) == selector.select(
            waiting, 8, copy.deepcopy(memory), rng(3)
        )

    def test_many_rounds_run_without_a_hitch(self, selector: Any) -> None:
        waiting, memory = population(40), Memory()
        for number in range(60):
            chosen = selector.select(waiting, 8, memory, rng(number))
            losses = dict.fromkeys(chosen, 1.0 / (number + 1))
            selector.observe(RoundOutcome(number, tuple(chosen), tuple(chosen), 5.0, losses), memory)
            assert chosen


def population(count: int) -> list[DeviceView]:
    """Half of them unknown; the known ones get slower and lossier with their number."""
    return [
        DeviceView(
            device=f"d{index}",
            latency_seconds=1.0 + index if index % 2 else None,
            loss=0.1 * index if index % 2 else None,
            samples=10,
            last_round=1 + index if index % 2 else None,
            cluster=index % 4,
        )
        for index in range(count)
    ]


def test_uniform_is_uniform() -> None:
    counts = Counter(device for seed in range(3000) for device in Uniform().select(population(10), 3, {}, rng(seed)))
    assert all(abs(count - 900) < 120 for count in counts.values())


def test_haccs_weighs_clusters_by_its_formula() -> None:
    waiting = [
        DeviceView("a", latency_seconds=2.0, loss=1.0, cluster=0),
        DeviceView("b", latency_seconds=4.0, loss=3.0, cluster=0),
        DeviceView("c", latency_seconds=6.0, loss=6.0, cluster=1),
    ]
    weights = ClusterWeighted(rho=0.25).weights(waiting)
    assert weights[0] == pytest.approx(0.25 * (1 - 3 / 6) + 0.75 * 2 / 8)
    assert weights[1] == pytest.approx(0.25 * 0 + 0.75 * 6 / 8)


def test_haccs_takes_the_fastest_of_each_cluster_first() -> None:
    waiting = [DeviceView(f"{c}{i}", latency_seconds=1.0 + i, loss=1.0, cluster=c) for c in range(3) for i in range(5)]
    chosen = ClusterWeighted(rho=0.0).select(waiting, 3, {}, rng())
    assert sorted(chosen) == ["00", "10", "20"]


def test_haccs_goes_on_when_a_cluster_is_exhausted() -> None:
    waiting = [DeviceView("only", latency_seconds=1.0, loss=100.0, cluster=0)] + [
        DeviceView(f"d{i}", latency_seconds=1.0, loss=0.001, cluster=1) for i in range(20)
    ]
    assert len(ClusterWeighted(draw="with_replacement").select(waiting, 10, {}, rng())) == 10


def test_haccs_still_draws_the_slowest_cluster_when_only_speed_counts() -> None:
    waiting = [
        DeviceView(f"{c}{i}", latency_seconds=1.0 + 9 * c, loss=1.0, cluster=c) for c in (0, 1) for i in range(50)
    ]
    chosen = [d for seed in range(2000) for d in ClusterWeighted(rho=1.0).select(waiting, 1, {}, rng(seed))]
    assert any(device.startswith("1") for device in chosen)


def test_oort_prefers_loss_and_punishes_slowness() -> None:
    selector = Oort(first_percentile=50)
    known = [
        DeviceView("dull", latency_seconds=1.0, loss=0.1, last_round=5, samples=10),
        DeviceView("keen", latency_seconds=1.0, loss=5.0, last_round=5, samples=10),
        DeviceView("slow", latency_seconds=50.0, loss=5.0, last_round=5, samples=10),
    ]
    dull, keen, slow = selector.scores(known, {"rounds": 10})
    assert keen > dull
    assert keen > 100 * slow


def test_oort_explores_less_and_less() -> None:
    waiting = [DeviceView(f"known{i}", loss=1.0, latency_seconds=1.0, last_round=1) for i in range(50)]
    waiting += [DeviceView(f"new{i}") for i in range(50)]

    def explored(rounds: int) -> int:
        chosen = Oort().select(waiting, 20, {"rounds": rounds}, rng())
        return sum(device.startswith("new") for device in chosen)

    assert explored(0) == 18
    assert explored(200) == 4


def test_oort_starts_with_nobody_known() -> None:
    waiting = [DeviceView(f"new{i}") for i in range(50)]
    assert len(Oort().select(waiting, 20, {}, rng())) == 20


def test_oort_pacer_relaxes_when_nothing_is_gained() -> None:
    memory: Memory = {}
    for number in range(40):
        Oort().observe(RoundOutcome(number, ("a",), ("a",), 1.0, {"a": 1.0}), memory)
    assert memory["percentile"] == 35.0


def test_tifl_stays_within_one_tier_and_spends_its_credits() -> None:
    waiting = [DeviceView(f"d{i:02}", latency_seconds=float(i), loss=1.0) for i in range(50)]
    memory: Memory = {}
    chosen = TiFL().select(waiting, 5, memory, rng())
    assert len({int(device[1:]) // 10 for device in chosen}) == 1
    assert sum(memory["credits"]) == 5 * TiFL()._first_credit() - 1


def test_tifl_turns_to_the_tier_that_does_worst() -> None:
    waiting = [DeviceView(f"d{i:02}", latency_seconds=float(i), loss=1.0 + i // 10) for i in range(50)]
    memory: Memory = {"round": 20, "losses": [0.5] * 5}
    TiFL().select(waiting, 5, memory, rng())
    assert memory["weights"] == [1.0, 2.0, 3.0, 4.0, 5.0]
