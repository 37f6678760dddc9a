"""What an onlooker can see of a release, and how a guess is made of it."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from privacy.auditing import granularity, statistics
from privacy.auditing.observations import Observations, Seen, numbers_of
from privacy.auditing.rules import Promise, Rule, Tally
from privacy.auditing.scouting import Scouted


def observed(rows, coins=None, *, failed=()) -> Observations:
    seen = [
        Seen(None, 0, failed=True) if index in failed else Seen(np.array(row), 8 * len(row))
        for index, row in enumerate(rows)
    ]
    return Observations.of(coins or [0] * len(rows), seen)


def of(statistic, rows, **options) -> list[float]:
    return statistic.of_each(observed(rows, **options)).tolist()


def test_statistics_say_what_they_are_named_for():
    rows = [[0, 5, -3], [4, 0, 0]]
    assert of(statistics.value(1), rows) == [5, 0]
    assert of(statistics.difference(1, 2), rows) == [8, 0]
    assert of(statistics.is_not_zero(0), rows) == [0, 1]
    assert of(statistics.support(), rows) == [2, 1]
    assert of(statistics.total(), rows) == [2, 4]
    assert of(statistics.largest(), rows) == [5, 4]
    assert of(statistics.smallest(), rows) == [-3, 0]
    assert of(statistics.magnitude(), [[-7, 5], [1, 2]]) == [7, 2]
    assert of(statistics.message_length(), rows) == [24, 24]
    assert of(statistics.projection(np.zeros(3), np.array([0.0, 3.0, 4.0])), rows) == pytest.approx([0.6, 0.0])


def test_nearness_is_the_loss_of_laplace_noise_up_to_its_scale():
    near = statistics.nearness(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert of(near, [[-5, 9], [9, -5], [4, 7]]) == [2, -2, 0]


def test_an_error_is_seen_as_such_and_shows_nothing_else():
    rows = [[1, 2], [3, 4]]
    assert of(statistics.error(), rows, failed={1}) == [0, 1]
    assert of(statistics.not_finite(), rows, failed={1}) == [0, 2]
    for blind in (statistics.value(0), statistics.message_length(), statistics.total()):
        assert math.isnan(of(blind, rows, failed={1})[1])


def test_releases_of_different_lengths_can_be_compared():
    rows = [[1, 2, 3], [4]]
    assert of(statistics.message_length(), rows) == [24, 8]
    assert of(statistics.not_finite(), rows) == [0, 2]
    assert of(statistics.value(0), rows) == [1, 4]


@pytest.mark.parametrize(
    ("value", "lowest"), [(1.0, 0), (12.0, 2), (0.375, -3), (-0.5, -1), (1 + 2.0**-52, -52), (2.0**-60, -60)]
)
def test_trailing_bits_of_a_float_are_those_of_its_value(value, lowest):
    assert of(granularity.trailing_bits(0), [[value]]) == [lowest]


def test_trailing_bits_of_integers_count_from_one_and_zero_has_none():
    found = of(granularity.trailing_bits(0), [[12], [-1], [0], [-(2**63)]])
    assert found[:2] == [2, 0]
    assert math.isnan(found[2])
    assert found[3] == 63


def test_values_that_are_not_finite_break_no_statistic():
    rows = [[math.nan, math.inf], [1e308, -math.inf], [1.0, 2.0], [3.0, 4.0]]
    seen = observed(rows, [0, 1, 0, 1])
    for statistic in statistics.fitted_to(seen):
        assert len(statistic.of_each(seen)) == 4


def test_bytes_that_cannot_be_decoded_are_read_as_integers():
    payload = struct.pack("<2q", 3, -4)
    assert numbers_of(payload, None).tolist() == [3, -4]
    assert numbers_of(payload, lambda _: 1 / 0).tolist() == [3, -4]
    assert numbers_of(payload, lambda _: ["no", "numbers"]).tolist() == [3, -4]
    assert numbers_of(payload + b"\x07", None).tolist() == [3, -4, 7]
    assert numbers_of(b"", None).tolist() == []


def test_decoded_tables_and_tensors_become_one_row():
    assert numbers_of(b"", lambda _: [[1, 2], [3, 4]]).tolist() == [1, 2, 3, 4]
    assert numbers_of(b"", lambda _: {"a": np.ones((1, 2)), "b": np.zeros(1)}).tolist() == [1, 1, 0]
    assert numbers_of(b"", lambda _: 7).tolist() == [7]


def test_columns_that_differ_are_found_among_many():
    rows = np.random.default_rng(0).normal(size=(400, 50))
    coins = [index % 2 for index in range(400)]
    rows[1::2, 31] += 3
    rows[::2, 12] = 0
    assert set(statistics.telling_columns(observed(rows, coins))[:2]) == {12, 31}


def test_a_rule_counts_its_guesses_against_the_coin():
    rule = Rule(statistics.value(0), low=0.0, high=2.0, turned=False)
    seen = observed([[-1], [1], [2], [3], [-1], [-1]], [0, 0, 0, 1, 1, 1])
    assert rule.tally(seen) == Tally(1, 1, 3, 1, 2, 3)
    turned = Rule(statistics.value(0), low=0.0, high=2.0, turned=True)
    assert turned.tally(seen) == Tally(1, 1, 3, 2, 1, 3)
    assert rule.tally(seen) + turned.tally(seen) == Tally(2, 2, 6, 3, 3, 6)


@pytest.mark.parametrize("promise", list(Promise))
@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_the_rule_that_separates_is_found_either_way_round(promise, shift):
    coins = [index % 2 for index in range(2000)]
    numbers = np.random.default_rng(1).normal(size=2000) + shift * np.array(coins)
    seen = observed(numbers[:, None], coins)
    scouted = Scouted.of(statistics.value(0), seen)
    assert scouted is not None
    prospect = scouted.best_rule(promise, 1e-6)
    assert prospect.score > 1
    assert prospect.rule.turned is (shift < 0)
    assert prospect.rule.tally(seen).bound(promise, 0.01, 1e-6) > 1.5


def test_a_rule_needs_something_that_changes():
    assert Scouted.of(statistics.value(0), observed([[1]] * 10, [0, 1] * 5)) is None


def test_luck_with_few_runs_does_not_beat_a_rule_that_many_speak_for():
    rng = np.random.default_rng(2)
    coins = (rng.random(4000) < 0.5).astype(int).tolist()
    honest = np.where(rng.random(4000) < 0.731, coins, 1 - np.array(coins))
    noise = rng.normal(size=(4000, 30))
    seen = observed(np.column_stack([honest, noise]), coins)
    scouted = [Scouted.of(statistics.value(column), seen) for column in range(31)]
    scores = [each.best_rule(Promise.PURE, 0.0).score for each in scouted if each is not None]
    assert scores[0] == max(scores)
