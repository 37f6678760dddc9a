"""When a cohort splits: at the rounds that were set, at the printed ratio, or on evidence without noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server_kit.formation.split_rules import Counts, Evidence, FixedRounds, PaperRatio
from server_kit.interfaces import Memory
from tests.server_kit.engine.scripted import names, seen


def few() -> Counts:
    return Counts(least_members=2)


@given(sizes=st.lists(st.integers(1, 30), max_size=4), least=st.integers(1, 12), ratio=st.floats(0, 1))
def test_counts_ask_for_enough_of_each_and_for_none_much_smaller(sizes, least, ratio):
    labels = {f"{group}.{number}": group for group, size in enumerate(sizes) for number in range(size)}
    expected = len(sizes) > 1 and min(sizes) >= least and min(sizes) >= ratio * max(sizes)
    assert Counts(least, ratio).hold(labels) == expected


def test_fixed_rounds_split_then_and_only_where_there_is_something_to_split():
    rule = FixedRounds((3, 7))
    two, one = {"d0": 0, "d1": 1}, {"d0": 0, "d1": 0}
    reasons = [rule.reason(seen({}, number), two, {}) is not None for number in range(9)]
    assert reasons == [False, False, False, True, False, False, False, True, False]
    assert rule.reason(seen({}, 3), one, {}) is None


PAIRS = {"d0": 0, "d1": 0, "d2": 1, "d3": 1}
SIDES = {device: int(number >= 10) for number, device in enumerate(names(20))}


class TestPaperRatio:
    def spread(self, within: float) -> dict[str, list[float]]:
        """Two pairs at −1 and 1, each pair `within` apart from its middle."""
        return {"d0": [-1 - within], "d1": [-1 + within], "d2": [1 - within], "d3": [1 + within]}

    @pytest.mark.parametrize(("within", "splits"), [(0.5, True), (0.99, True), (1.01, False), (3.0, False)])
    def test_it_splits_at_one_over_root_two(self, within, splits):
        # RMS inside over RMS of all is within/√(1 + within²), which is 1/√2 at within = 1.
        reason = PaperRatio(few()).reason(seen(self.spread(within)), PAIRS, {})
        assert (reason is not None) == splits

    def test_the_ratio_is_smoothed(self):
        memory: Memory = {}
        rule = PaperRatio(few(), smoothing=0.2)
        rule.reason(seen(self.spread(3.0)), PAIRS, memory)
        rule.reason(seen(self.spread(0.0)), PAIRS, memory)
        assert memory["ratio"] == pytest.approx(0.8 * 3 / math.sqrt(10))

    def test_too_few_members_do_not_split(self):
        assert PaperRatio(Counts(3)).reason(seen(self.spread(0.1)), PAIRS, {}) is None

    def test_who_has_no_label_says_nothing(self):
        apart = {**self.spread(0.5), "d9": [1000.0]}
        memory: Memory = {}
        PaperRatio(few()).reason(seen(apart), PAIRS, memory)
        assert memory["ratio"] == pytest.approx(0.5 / math.sqrt(1.25))


class TestEvidence:
    def step(self, generator: torch.Generator, gap: float, noise: float = 1.0, devices: int = 20):
        """Half the devices pull one way, half the other; both halves of a device have noise of their own."""
        pull = torch.zeros(devices, 6)
        pull[:, 0] = torch.where(torch.arange(devices) < devices // 2, -gap, gap)
        one, other = (pull + noise * torch.randn(devices, 6, generator=generator) for _ in range(2))
        halves = (one, other)
        return seen({device: row.tolist() for device, row in zip(names(devices), one, strict=True)}, halves=halves)

    def reasons(self, rule: Evidence, gap: float, steps: int, labels: dict[str, int] | None = None) -> list[bool]:
        generator, memory = torch.Generator().manual_seed(1), Memory()
        return [rule.reason(self.step(generator, gap), labels or SIDES, memory) is not None for _ in range(steps)]

    def test_real_groups_split_after_as_many_rounds_as_are_asked_for(self):
        assert self.reasons(Evidence(few(), rounds=4), 2.0, 6) == [False, False, False, True, True, True]

    def test_devices_that_are_alike_never_split(self):
        assert not any(self.reasons(Evidence(few(), rounds=4), 0.0, 60))

    def test_groups_that_mean_nothing_do_not_split_what_differs(self):
        random = {device: number % 2 for number, device in enumerate(names(20))}
        assert not any(self.reasons(Evidence(few(), rounds=4), 2.0, 30, random))

    def test_without_the_signal_gate_chance_would_split_devices_that_are_alike(self):
        assert any(self.reasons(Evidence(few(), rounds=1, signal=-9.0, most_left=0.75), 0.0, 60))

    def test_the_measure_is_the_covariance_of_halves_written_out(self):
        memory: Memory = {}
        step = self.step(torch.Generator().manual_seed(3), 1.0)
        Evidence(few()).reason(step, SIDES, memory)
        assert step.halves is not None
        one, other = (half.double().numpy() for half in step.halves)
        groups = np.array([SIDES[device] for device in step.devices])
        before = sum((a - one.mean(0)) @ (b - other.mean(0)) for a, b in zip(one, other, strict=True)) / 19
        after = (
            sum(
                (one[row] - one[groups == groups[row]].mean(0)) @ (other[row] - other[groups == groups[row]].mean(0))
                for row in range(20)
            )
            / 18
        )
        ((found_before, found_after, _),) = memory["evidence"]
        assert (found_before, found_after) == pytest.approx((before, after))

    def test_without_halves_there_is_no_evidence(self):
        memory: Memory = {}
        assert Evidence(few()).reason(seen({"d0": [1.0], "d1": [2.0]}), {"d0": 0, "d1": 1}, memory) is None
        assert memory == {}

    def test_old_rounds_are_forgotten(self):
        rule, memory, generator = Evidence(few(), memory_rounds=5), Memory(), torch.Generator().manual_seed(0)
        for _ in range(9):
            rule.reason(self.step(generator, 1.0), SIDES, memory)
        assert len(memory["evidence"]) == 5
