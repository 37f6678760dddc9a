"""Rewards follow Auxo's formula; strikes catch a pretender and forgive an honest drifter."""

from __future__ import annotations

import pytest
import torch

from server_kit.affinity_feedback import Strikes, reward_changes
from server_kit.interfaces import Memory


def slow_rewards(rows: list[list[float]], known: list[bool]) -> list[float]:
    members = [row for row, belongs in zip(rows, known, strict=True) if belongs]
    centre = [sum(column) / len(members) for column in zip(*members, strict=True)]
    distances = [sum((x - c) ** 2 for x, c in zip(row, centre, strict=True)) ** 0.5 for row in rows]
    mean = sum(distances) / len(distances)
    deviation = (sum((d - mean) ** 2 for d in distances) / len(distances)) ** 0.5
    return [1 - d / (mean + deviation) for d in distances]


def test_rewards_equal_the_formula_written_out() -> None:
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    known = [True, False, True, True, False, False, True, False, True]
    assert reward_changes(rows, known) == pytest.approx(slow_rewards(rows.double().tolist(), known))


def test_an_outlier_is_punished_and_a_member_rewarded() -> None:
    rows = torch.cat([torch.zeros(9, 3), torch.full((1, 3), 10.0)])
    changes = reward_changes(rows, [True] * 9 + [False])
    assert changes is not None
    assert changes[0] > 0.9
    assert changes[-1] < 0


def test_too_few_known_members_give_no_verdict() -> None:
    assert reward_changes(torch.randn(5, 3), [True, False, False, False, False]) is None


def test_identical_participants_all_fit() -> None:
    assert reward_changes(torch.ones(4, 3), [True] * 4) == [1.0] * 4


def test_a_pretender_is_banned_after_three_strikes_and_comes_back() -> None:
    strikes, memory = Strikes(ban_rounds=10), Memory()
    for number in range(3):
        assert not strikes.banned("fake", number, memory)
        assert strikes.judge("fake", 1.0, -2.0, number, memory)
    assert strikes.banned("fake", 5, memory)
    assert not strikes.banned("fake", 12, memory)
    assert "fake" not in memory["banned_until"]


def test_an_honest_device_that_drifts_once_is_forgiven() -> None:
    strikes, memory = Strikes(), Memory()
    for number, change in enumerate([0.3, -2.0, 0.2, 0.1, -2.0, 0.4, 0.2, 0.3]):
        strikes.judge("honest", 1.0, change, number, memory)
        assert not strikes.banned("honest", number, memory)


def test_a_newcomer_that_claims_nothing_gets_no_strike() -> None:
    assert not Strikes().judge("new", 0.0, -9.0, 1, {})
