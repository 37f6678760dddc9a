"""Each rule equals its formula written out slowly, and all of them keep one contract."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server_kit.aggregation import (
    CasaDecay,
    CoordinateMedian,
    FedAsync,
    FedAvg,
    FedBuff,
    FedYogi,
    NormBound,
    QFedAvg,
    TrimmedMean,
)
from server_kit.aggregation.streaming import Held
from server_kit.interfaces import Memory, Update

SIZE = 7
MODEL = torch.linspace(-1, 1, SIZE)
ALL = [
    FedAvg(),
    FedAvg(weighted=False),
    FedYogi(),
    QFedAvg(),
    FedAsync(),
    FedAsync(decay="hinge"),
    CasaDecay(),
    FedBuff(),
    FedBuff(momentum=0.9),
    CoordinateMedian(),
    TrimmedMean(0.2),
    NormBound(FedAvg(), 0.5),
]


def updates(count: int, seed: int = 0) -> list[Update]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Update(
            device=f"d{index}",
            delta=torch.randn(SIZE, generator=generator),
            staleness=index % 3,
            weight=1.0 + index,
            loss=0.5 + index,
        )
        for index in range(count)
    ]


class Streamed:
    """Hands out each update anew, as from a disk, and counts how many are held at a time."""

    def __init__(self, held: list[Update]) -> None:
        self._held = held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Update]:
        for update in self._held:
            yield replace(update, delta=update.delta.clone())


@pytest.mark.parametrize("rule", ALL, ids=repr)
class TestEveryAggregator:
    def test_without_updates_the_model_stays(self, rule: Any) -> None:
        assert torch.equal(rule.aggregate(MODEL, Held([]), {}), MODEL)

    def test_the_model_given_is_left_alone(self, rule: Any) -> None:
        model = MODEL.clone()
        rule.aggregate(model, Held(updates(5)), {})
        assert torch.equal(model, MODEL)

    def test_form_and_precision_are_kept(self, rule: Any) -> None:
        after = rule.aggregate(MODEL, Held(updates(5)), {})
        assert (after.shape, after.dtype) == (MODEL.shape, MODEL.dtype)
        assert torch.isfinite(after).all()

    def test_a_stream_gives_what_a_list_gives(self, rule: Any) -> None:
        held = updates(9)
        assert torch.equal(rule.aggregate(MODEL, Held(held), {}), rule.aggregate(MODEL, Streamed(held), {}))

    def test_the_same_call_gives_the_same_bits(self, rule: Any) -> None:
        memory: Memory = {}
        rule.aggregate(MODEL, Held(updates(4, seed=1)), memory)
        first, second = copy.deepcopy(memory), copy.deepcopy(memory)
        assert torch.equal(
            rule.aggregate(MODEL, Held(updates(4)), first), rule.aggregate(MODEL, Held(updates(4)), second)
        )

    def test_a_copied_memory_lets_children_go_their_own_way(self, rule: Any) -> None:
        parent: Memory = {}
        rule.aggregate(MODEL, Held(updates(4)), parent)
        child, before = copy.deepcopy(parent), repr(parent)
        rule.aggregate(MODEL, Held(updates(4, seed=2)), child)
        assert repr(parent) == before


def test_fedavg_is_the_weighted_mean() -> None:
    held = updates(5)
    expected = MODEL + sum(u.weight * u.delta for u in held) / sum(u.weight for u in held)
    torch.testing.assert_close(FedAvg().aggregate(MODEL, Held(held), {}), expected)


def test_masked_coordinates_are_averaged_among_those_who_trained_them() -> None:
    one = Update("a", torch.tensor([2.0, 2.0, 0.0]), mask=torch.tensor([1, 1, 0]))
    two = Update("b", torch.tensor([4.0, 0.0, 0.0]), mask=torch.tensor([1, 0, 0]))
    after = FedAvg().aggregate(torch.zeros(3), Held([one, two]), {})
    assert after.tolist() == [3.0, 2.0, 0.0]


def test_fedyogi_follows_its_three_lines() -> None:
    rule, memory = FedYogi(learning_rate=0.1, tau=1e-3), Memory()
    first, second, model = torch.zeros(SIZE).double(), torch.full((SIZE,), 1e-6).double(), MODEL.double()
    for step in range(4):
        held = updates(3, seed=step)
        mean = torch.stack([u.delta for u in held]).double().mean(0)
        first = 0.9 * first + 0.1 * mean
        second = second - 0.01 * mean**2 * torch.sign(second - mean**2)
        model = model + 0.1 * first / (second.sqrt() + 1e-3)
    after = MODEL
    for step in range(4):
        after = rule.aggregate(after, Held(updates(3, seed=step)), memory)
    torch.testing.assert_close(after.double(), model, atol=1e-6, rtol=1e-5)


def test_qfedavg_follows_its_formula() -> None:
    held, q, lipschitz = updates(4), 2.0, 10.0
    numerator, denominator = torch.zeros(SIZE).double(), 0.0
    for u in held:
        assert u.loss is not None
        gradient = lipschitz * (MODEL.double() - (MODEL + u.delta).double())
        numerator += u.loss**q * gradient
        denominator += q * u.loss ** (q - 1) * float(gradient.norm()) ** 2 + lipschitz * u.loss**q
    after = QFedAvg(q=q, learning_rate=0.1).aggregate(MODEL, Held(held), {})
    torch.testing.assert_close(after.double(), MODEL.double() - numerator / denominator, atol=1e-5, rtol=1e-4)


def test_qfedavg_at_zero_is_the_plain_mean() -> None:
    held = updates(4)
    torch.testing.assert_close(
        QFedAvg(q=0.0).aggregate(MODEL, Held(held), {}), FedAvg(weighted=False).aggregate(MODEL, Held(held), {})
    )


@pytest.mark.parametrize(
    ("decay", "staleness", "expected"),
    [("constant", 9, 1.0), ("polynomial", 3, 0.5), ("hinge", 4, 1.0), ("hinge", 6, 1 / 21), ("polynomial", 0, 1.0)],
)
def test_fedasync_discounts_staleness_as_published(decay: Any, staleness: int, expected: float) -> None:
    rule = FedAsync(decay=decay, a=10.0 if decay == "hinge" else 0.5)
    assert rule.freshness(staleness) == pytest.approx(expected)


def test_fedasync_mixes_the_devices_model_not_its_delta() -> None:
    base = torch.full((SIZE,), 5.0)
    update = Update("a", torch.ones(SIZE), base=base)
    after = FedAsync(alpha=0.25, decay="constant").aggregate(torch.zeros(SIZE), Held([update]), {})
    assert after.tolist() == [0.25 * 6.0] * SIZE


def test_fedbuff_divides_by_the_buffer_once() -> None:
    held = [Update(f"d{t}", torch.full((2,), 4.0), staleness=t) for t in (0, 3)]
    after = FedBuff().aggregate(torch.zeros(2), Held(held), {})
    assert after.tolist() == pytest.approx([(4.0 + 2.0) / 2] * 2)


@given(st.integers(0, 200), st.integers(1, 500), st.integers(0, 10_000))
def test_casa_keeps_alpha_within_zero_and_one(staleness: int, members: int, merges: int) -> None:
    memory: Memory = {"members": members, "merges": merges, "staleness": [1, 2, 3]}
    rule = CasaDecay()
    assert 0 <= rule.device_alpha(staleness, memory) <= rule.cohort_alpha(memory) <= 1
    assert 0 <= rule.sparse_rate(staleness, memory) <= 0.5


def test_casa_decays_with_time_cohort_size_and_staleness() -> None:
    rule = CasaDecay(population=10)
    young: Memory = {"members": 20, "staleness": [2]}
    assert rule.cohort_alpha(young) == pytest.approx(0.6 / math.log(20))
    assert rule.cohort_alpha({**young, "merges": 30}) == pytest.approx(0.6 / 2 / math.log(20))
    assert rule.device_alpha(9, young) == pytest.approx(rule.cohort_alpha(young) / 3)
    assert rule.device_alpha(2, young) == rule.cohort_alpha(young)
    assert rule.sparse_rate(9, young) > rule.sparse_rate(2, young)


def test_casa_moves_only_what_the_mask_kept() -> None:
    update = Update("a", torch.ones(3), mask=torch.tensor([1, 0, 1]))
    after = CasaDecay(alpha=0.5).aggregate(torch.zeros(3), Held([update]), {})
    assert after.tolist() == [0.5, 0.0, 0.5]


def test_median_and_trimmed_mean_ignore_a_liar_that_moves_the_mean() -> None:
    honest = [Update(f"d{i}", torch.ones(3)) for i in range(9)]
    liar = Update("liar", torch.full((3,), -1e6))
    for rule in (CoordinateMedian(), TrimmedMean(0.1)):
        assert rule.aggregate(torch.zeros(3), Held([*honest, liar]), {}).tolist() == [1.0, 1.0, 1.0]
    assert FedAvg().aggregate(torch.zeros(3), Held([*honest, liar]), {})[0] < -1e4


def test_robust_rules_read_in_blocks_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    from server_kit.aggregation import robust

    held = Held(updates(5))
    whole = CoordinateMedian().aggregate(MODEL, held, {})
    monkeypatch.setattr(robust, "_MOST_VALUES", 10)
    assert torch.equal(CoordinateMedian().aggregate(MODEL, held, {}), whole)


def test_norm_bound_shortens_only_what_is_too_long() -> None:
    short, long = Update("a", torch.tensor([0.3, 0.4])), Update("b", torch.tensor([30.0, 40.0]))
    bounded = NormBound(FedAvg(weighted=False), 1.0)
    assert bounded.aggregate(torch.zeros(2), Held([short]), {}).tolist() == pytest.approx([0.3, 0.4])
    assert bounded.aggregate(torch.zeros(2), Held([long]), {}).tolist() == pytest.approx([0.6, 0.8])
