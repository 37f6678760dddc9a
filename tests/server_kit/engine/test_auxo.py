"""Auxo: sub-clusters and rewards go back to devices, and who claims what it does not fit is found out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from server_kit.affinity_feedback import Strikes
from server_kit.clustering import OnlineKMeans
from server_kit.formation.online import Online
from server_kit.formation.split_rules import Evidence, FixedRounds
from server_kit.interfaces import CheckIn, Memory
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import Play, ScriptedFleet, names, rng, seen
from tests.server_kit.engine.test_invariants import EAGER
from tests.server_kit.engine.worlds import people, run, small

NEVER = FixedRounds(())


def pull(device: str, jitter: float = 0.01) -> list[float]:
    """Even devices pull one way, odd ones another, each a little in its own."""
    number = int(device[1:])
    side = [1.0, 0.0] if number % 2 == 0 else [0.0, 1.0]
    return [*side, jitter * math.sin(number), jitter * math.cos(number)]


def play(devices: int = 12, rounds: Sequence[int] = (4,), **more: Any) -> Play:
    formation = Online(rule=FixedRounds(tuple(rounds)), start_round=2, **more)
    fleet = ScriptedFleet(names(devices), delta=lambda device, order: pull(device))
    return Play(Strategy("auxo", formation=formation), fleet)


def follow(now: Play) -> None:
    """Devices ask by their records, as devices do."""
    for device, record in now.fleet.records.items():
        leaves = [leaf for leaf in now.federation.leaves if leaf in record.affinities]
        best = max(leaves, key=record.reward, default=None)
        known = record.affinities.get(best or "")
        if known is not None:
            now.fleet.requests[device] = CheckIn(device, best, known.sub_cluster, known.reward)


def two_leaves() -> Play:
    now = play()
    for _ in range(4):
        follow(now)
        now.round()
    assert now.federation.leaves == ["0.0", "0.1"]
    return now


def test_devices_are_told_their_sub_cluster_from_the_start_round_on():
    now = play(rounds=())
    now.round()
    assert all(record.affinities["0"].sub_cluster is None for record in now.fleet.records.values())
    now.round()
    told = {device: record.affinities["0"].sub_cluster for device, record in now.fleet.records.items()}
    assert {told[device] for device in names(12)[::2]} != {told[device] for device in names(12)[1::2]}
    assert len(set(told.values())) == 2


def test_there_is_no_reward_while_there_is_one_cohort():
    now = play(rounds=())
    for _ in range(4):
        now.round()
    assert {record.reward("0") for record in now.fleet.records.values()} == {0.0}


def test_after_a_split_each_device_asks_for_the_child_of_its_sub_cluster():
    now = two_leaves()
    follow(now)
    orders = now.invite()
    assert {order.cohort for order in orders} == {"0.0", "0.1"}
    for leaf in ("0.0", "0.1"):
        assert len({int(order.device[1:]) % 2 for order in orders if order.cohort == leaf}) == 1


def test_rewards_are_the_printed_formula_over_those_known_to_belong():
    now = two_leaves()
    updates = {"d0": [1.0, 0, 0, 0], "d2": [1.2, 0, 0, 0], "d4": [0.8, 0.1, 0, 0], "d1": [0, 3.0, 0, 0]}
    claims = {device: CheckIn(device, "0.0", None, 0.5) for device in ("d0", "d2", "d4")}
    claims["d1"] = CheckIn("d1", "0.0", None, 0.0)  # fitted badly so far
    look = Online(rule=NEVER).look(seen(updates, cohort="0.0", claims=claims), {}, now.federation, rng())
    rows = np.array(list(updates.values()))
    distances = np.linalg.norm(rows - rows[:3].mean(axis=0), axis=1)
    expected = 1 - distances / (distances.mean() + distances.std())
    assert [answer.reward_change for answer in look.answers] == pytest.approx(expected.tolist(), rel=1e-5)


def test_without_two_who_belong_there_is_no_verdict():
    now = two_leaves()
    claims = {"d0": CheckIn("d0", "0.0", None, 0.5)}
    look = Online(rule=NEVER).look(
        seen({"d0": [1.0] * 4, "d1": [2.0] * 4}, cohort="0.0", claims=claims), {}, now.federation, rng()
    )
    assert [answer.reward_change for answer in look.answers] == [None, None]


class TestLiars:
    def lying(self) -> Play:
        """Everybody belongs where it asks, but d1 claims to fit among the even ones."""
        now = two_leaves()
        follow(now)
        even, odd = (now.fleet.requests[device].cohort for device in ("d0", "d1"))
        for device in names(12):
            home = even if device == "d1" or int(device[1:]) % 2 == 0 else odd
            now.fleet.requests[device] = CheckIn(device, home, None, 0.5)
        now.fleet.delta = lambda device, order: [-50.0, 50.0, 0, 0] if device == "d1" else pull(device)
        now.fleet.devices += names(30)[12::2]
        for device in names(30)[12::2]:
            now.fleet.requests[device] = CheckIn(device, even, None, 0.5)
        return now

    def asked(self, now: Play) -> set[str]:
        now.fleet.orders.clear()
        now.round()
        return {order.device for order in now.fleet.orders}

    def test_a_false_claim_is_struck_and_the_third_strike_bans_for_a_while(self):
        now = self.lying()
        took_part = ["d1" in self.asked(now) for _ in range(3)]
        assert took_part == [True] * 3
        until = now.federation.memory["banned_until"]["d1"]
        assert until == now.state.cohorts["0.0"].round + Strikes().ban_rounds
        assert set(now.federation.memory["banned_until"]) == {"d1"}
        assert "d1" not in self.asked(now)
        for cohort in now.state.cohorts.values():
            cohort.round += Strikes().ban_rounds
        assert "d1" in self.asked(now)

    def test_without_strikes_nobody_is_banned(self):
        now = self.lying()
        formation = Online(rule=NEVER, strikes=None)
        now.federation.plan.strategy.__dict__["formation"] = formation
        for _ in range(5):
            now.round()
        assert "banned_until" not in now.federation.memory

    def test_who_claims_nothing_is_not_struck(self):
        now = self.lying()
        now.fleet.requests["d1"] = CheckIn("d1", now.fleet.requests["d1"].cohort, None, 0.0)
        for _ in range(5):
            now.round()
        assert "banned_until" not in now.federation.memory


def test_the_first_sub_clusters_of_a_child_are_found_among_those_who_belong():
    now = two_leaves()
    updates = {device: pull(device) for device in names(10)}
    claims = {device: CheckIn(device, "0.0", None, 0.5) for device in names(6)}
    memory: Memory = {}
    look = Online(rule=NEVER).look(seen(updates, cohort="0.0", claims=claims), memory, now.federation, rng())
    assert [answer.sub_cluster is None for answer in look.answers] == [False] * 6 + [True] * 4


def test_centres_follow_their_members_a_step_at_a_time():
    online = Online(rule=NEVER, centre_memory=0.75)
    memory: Memory = {}
    now = play()
    updates = {device: pull(device, 0.0) for device in names(6)}
    online.look(seen(updates), memory, now.federation, rng())
    first = memory["centres"].clone()
    turned = {device: [*row[:2], 5.0 * (row[0] - row[1]), 0.0] for device, row in updates.items()}
    online.look(seen(turned, 11), memory, now.federation, rng())
    moved = memory["centres"]
    rows = np.array(list(turned.values())) - np.mean(list(turned.values()), axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    here = rows[0] if first[0, 0] > 0 else rows[1]
    assert moved[0].tolist() == pytest.approx((0.75 * first[0].numpy() + 0.25 * here).tolist(), abs=1e-6)


def test_no_more_cohorts_than_allowed():
    now = play(rounds=range(50), most_cohorts=3)
    for _ in range(12):
        follow(now)
        now.round()
    assert len(now.federation.leaves) <= 3


def test_who_has_lost_its_record_still_finds_a_place():
    everything = run(
        "auxo",
        people(affinity_loss=1.0),
        small(6),
        overrides=EAGER["auxo"],
    )
    assert everything.points[-1].progress.round == 6
    assert len(everything.points[-1].cohorts) > 1
    assert sum(cohort.devices for cohort in everything.points[-1].cohorts.values()) == 12


def test_halves_are_asked_for_where_the_rule_needs_them():
    assert Online(rule=Evidence()).wants.halves
    assert not Online(rule=NEVER).wants.halves


@pytest.mark.parametrize("centres", ["running", "labelled"])
def test_before_the_start_round_and_after_the_stop_round_labels_stay(centres):
    now = play()
    online = Online(rule=NEVER, start_round=5, stop_round=6, centres=centres, clusterer=OnlineKMeans())
    memory: Memory = {}
    updates = {device: pull(device) for device in names(8)}
    claims = {"d0": CheckIn("d0", "0", 1)}
    for round_number in (4, 7):
        look = online.look(seen(updates, round_number, claims=claims), memory, now.federation, rng())
        assert [answer.sub_cluster for answer in look.answers] == [1] + [None] * 7
