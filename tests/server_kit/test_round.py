"""A cohort moves on with what arrived, counts everything once, and does the same again when replayed."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server_kit.aggregation import CasaDecay, FedAsync, FedAvg, FedBuff, FedYogi
from server_kit.interfaces import DeviceView, Update
from server_kit.round import Arrival, Asking, Cohort, CohortState, Event, Folding, MemoryShelf, Pace, Verdict, replay
from server_kit.selection import ClusterWeighted, Oort, Uniform

SIZE = 4


def cohort(pace: Pace, aggregator: Any = None, selector: Any = None, seed: int = 0) -> Cohort:
    state = CohortState("0", torch.zeros(SIZE))
    return Cohort(state, selector or Uniform(), aggregator or FedAvg(), pace, MemoryShelf(), seed)


def waiting(count: int) -> list[DeviceView]:
    return [DeviceView(f"d{index:03}", latency_seconds=1.0 + index) for index in range(count)]


def update(device: str, value: float = 1.0) -> Update:
    return Update(device, torch.full((SIZE,), value), loss=abs(value))


def answer(work: Cohort, sent: Update, now: float) -> Verdict:
    """Put what a device sent where the cohort will look for it, and say so."""
    out = work.state.asked | work.state.missed
    if sent.device in out:
        work.shelf.put(replace(sent, base_version=out[sent.device].version))  # type: ignore[attr-defined]
    return work.receive(sent.device, now)


def test_a_round_asks_more_than_it_needs_and_moves_on_with_the_first() -> None:
    work = cohort(Pace(arrivals=8, over_commit=1.25))
    asked = work.ask(waiting(50), 0.0)
    assert len(asked) == 10
    for device in asked[:7]:
        answer(work, update(device), 1.0)
    assert not work.due(1.0)
    answer(work, update(asked[7]), 2.0)
    assert work.due(2.0)
    outcome = work.fold(2.0)
    assert (work.state.version, outcome.duration_seconds, len(outcome.arrived)) == (1, 2.0, 8)
    assert work.state.model.tolist() == [1.0] * SIZE


def test_a_straggler_is_acknowledged_late_and_free_for_the_next_round() -> None:
    work = cohort(Pace(arrivals=1, over_commit=2.0))
    first, second = work.ask(waiting(2), 0.0)
    answer(work, update(first), 1.0)
    work.fold(1.0)
    assert answer(work, update(second), 5.0) is Verdict.LATE
    assert not work.due(5.0)
    assert second in work.ask(waiting(2), 6.0)


def test_a_straggler_can_be_folded_with_its_staleness() -> None:
    work = cohort(Pace(arrivals=1, over_commit=2.0, fold_late=True), FedBuff())
    first, second = work.ask(waiting(2), 0.0)
    answer(work, update(first), 1.0)
    work.fold(1.0)
    answer(work, update(second, 2.0), 5.0)
    work.fold(5.0)
    assert work.state.model[0].item() == pytest.approx(1.0 + 2.0 / math.sqrt(2))


def test_whatever_arrives_twice_is_counted_once() -> None:
    work = cohort(Pace(arrivals=3))
    asked = work.ask(waiting(3), 0.0)
    assert answer(work, update(asked[0]), 1.0) is Verdict.ACCEPTED
    assert answer(work, update(asked[0]), 1.0) is Verdict.NOT_ASKED
    assert answer(work, update("stranger"), 1.0) is Verdict.NOT_ASKED
    assert len(work.state.arrived) == 1
    assert work.state.refusals["not asked"] == 2


def test_at_the_deadline_a_round_goes_on_with_those_who_came() -> None:
    work = cohort(Pace(arrivals=5, deadline_seconds=10.0, fewest=2))
    asked = work.ask(waiting(5), 0.0)
    answer(work, update(asked[0]), 1.0)
    assert not work.due(10.0)
    answer(work, update(asked[1]), 2.0)
    assert not work.due(9.9)
    assert work.due(10.0)


def test_too_few_at_the_deadline_are_kept_and_others_asked_in_place_of_the_missing() -> None:
    work = cohort(Pace(arrivals=3, deadline_seconds=10.0, fewest=3))
    asked = work.ask(waiting(3), 0.0)
    answer(work, update(asked[0]), 1.0)
    replacements = work.ask(waiting(9), 10.0)
    assert len(replacements) == 2
    assert not set(replacements) & set(asked)
    for device in replacements:
        answer(work, update(device), 11.0)
    assert len(work.fold(11.0).arrived) == 3


def test_a_device_that_went_away_is_replaced() -> None:
    work = cohort(Pace(arrivals=3))
    asked = work.ask(waiting(3), 0.0)
    work.lost(asked[0])
    assert len(work.ask(waiting(9), 1.0)) == 1


def test_unusable_updates_are_left_out_and_counted() -> None:
    work = cohort(Pace(arrivals=4))
    asked = work.ask(waiting(4), 0.0)
    bad = [torch.full((SIZE,), math.nan), torch.full((SIZE,), math.inf), torch.zeros(SIZE + 1)]
    for device, delta in zip(asked, bad, strict=False):
        answer(work, Update(device, delta), 1.0)
    answer(work, update(asked[3], 2.0), 1.0)
    outcome = work.fold(1.0)
    assert outcome.arrived == (asked[3],)
    assert work.state.model.tolist() == [2.0] * SIZE
    assert work.state.refusals == {"not finite": 2, "of another shape": 1}


def test_a_round_of_only_unusable_updates_leaves_the_model_alone() -> None:
    work = cohort(Pace(arrivals=1))
    device = work.ask(waiting(1), 0.0)[0]
    answer(work, update(device, math.nan), 1.0)
    assert work.fold(1.0).arrived == ()
    assert work.state.model.tolist() == [0.0] * SIZE


def test_fewer_devices_than_wanted_are_all_asked_and_none_is_an_empty_round() -> None:
    work = cohort(Pace(arrivals=8))
    assert work.ask([], 0.0) == []
    assert len(work.ask(waiting(3), 0.0)) == 3
    assert not work.due(100.0)


def test_asynchronous_work_keeps_devices_busy_and_folds_each_arrival() -> None:
    work = cohort(Pace(arrivals=1, in_flight=4), FedAsync(alpha=0.5, decay="constant"))
    asked = work.ask(waiting(9), 0.0)
    assert len(asked) == 4
    answer(work, update(asked[0]), 1.0)
    assert work.due(1.0)
    work.fold(1.0)
    assert len(work.ask(waiting(9), 1.0)) == 1
    answer(work, update(asked[1]), 2.0)
    assert work.state.arrived[0].staleness == 1


def test_a_buffer_folds_when_it_is_full() -> None:
    work = cohort(Pace(arrivals=3, in_flight=6), FedBuff())
    asked = work.ask(waiting(9), 0.0)
    for device in asked[:2]:
        answer(work, update(device), 1.0)
    assert not work.due(1.0)
    answer(work, update(asked[2]), 1.0)
    work.fold(1.0)
    assert work.state.model.tolist() == [1.0] * SIZE


PACES = [
    (Pace(arrivals=3, over_commit=1.4, deadline_seconds=9.0), FedYogi(), Uniform()),
    (Pace(arrivals=3, over_commit=1.4, fold_late=True), FedAvg(), ClusterWeighted()),
    (Pace(arrivals=2, in_flight=5), FedBuff(momentum=0.5), Uniform()),
    (Pace(arrivals=1, in_flight=4), CasaDecay(), Oort()),
]


@pytest.mark.parametrize(("pace", "aggregator", "selector"), PACES)
def test_replaying_the_log_gives_the_same_state_bit_for_bit(pace: Pace, aggregator: Any, selector: Any) -> None:
    first = cohort(pace, aggregator, selector, seed=7)
    log = live(first, steps=60)
    second = replace(cohort(pace, aggregator, selector, seed=7), shelf=first.shelf)
    replay(second, log)
    assert torch.equal(first.state.model, second.state.model)
    assert repr(first.state) == repr(second.state)
    assert first.state.version > 3


def test_another_seed_asks_other_devices() -> None:
    assert cohort(Pace(arrivals=5), seed=1).ask(waiting(50), 0.0) != cohort(Pace(arrivals=5), seed=2).ask(
        waiting(50), 0.0
    )


def live(work: Cohort, steps: int) -> list[Event]:
    """Some lively history: devices answer out of order, some never, some twice."""
    log: list[Event] = []
    for step in range(steps):
        at = float(step)
        views = tuple(waiting(12))
        log.append(Asking(views, at))
        work.ask(views, at)
        out = sorted(work.state.asked)
        for device in out[step % 3 :: 2]:
            sent = update(device, 0.1 * step)
            log += [Arrival(device, at)] * (1 + step % 2)
            for _ in range(1 + step % 2):
                answer(work, sent, at)
        if work.due(at):
            log.append(Folding(at))
            work.fold(at)
    return log


class CohortLife(RuleBasedStateMachine):
    """Random calls: every accepted update is folded exactly once, whatever the order."""

    def __init__(self) -> None:
        super().__init__()
        self.work = cohort(Pace(arrivals=3, over_commit=1.5, deadline_seconds=5.0, fold_late=True), SumOf())
        self.now = 0.0
        self.accepted = 0

    @rule(count=st.integers(0, 9))
    def ask(self, count: int) -> None:
        asked = self.work.ask(waiting(count), self.now)
        assert len(set(asked)) == len(asked)

    @rule(index=st.integers(0, 9))
    def arrive(self, index: int) -> None:
        verdict = answer(self.work, update(f"d{index:03}"), self.now)
        self.accepted += verdict in {Verdict.ACCEPTED, Verdict.LATE}

    @rule(index=st.integers(0, 9))
    def lose(self, index: int) -> None:
        self.work.lost(f"d{index:03}")

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.work.due(self.now))
    @rule()
    def fold(self) -> None:
        self.work.fold(self.now)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        assert self.work.state.model[0].item() + len(self.work.state.arrived) == self.accepted

    @invariant()
    def a_device_is_in_one_place(self) -> None:
        state = self.work.state
        assert not set(state.asked) & set(state.missed)


class SumOf:
    """Adds every update once, so that a lost or doubled one shows in the model."""

    def aggregate(self, model: torch.Tensor, updates: Any, memory: Any) -> torch.Tensor:
        del memory
        return model + sum((one.delta for one in updates), torch.zeros(SIZE))


TestCohortLife = CohortLife.TestCase
TestCohortLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_copied_state_goes_its_own_way() -> None:
    work = cohort(Pace(arrivals=1), FedYogi())
    answer(work, update(work.ask(waiting(1), 0.0)[0]), 1.0)
    work.fold(1.0)
    child = copy.deepcopy(work.state)
    before = work.state.model.clone()
    other = Cohort(child, Uniform(), FedYogi(), Pace(arrivals=1), MemoryShelf())
    answer(other, update(other.ask(waiting(1), 2.0)[0]), 3.0)
    other.fold(3.0)
    assert torch.equal(work.state.model, before)
    assert not torch.equal(child.model, before)
