"""The engine between its parts: who is asked, what happens to those who are out, and to whom answers belong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from server_kit.aggregation import FedBuff, FedYogi
from server_kit.federation import Change
from server_kit.formation.never import Never
from server_kit.interfaces import CheckIn, Decision, Look, Merge, Order, Split, Wants
from server_kit.matching import Assigned, ByRequest
from server_kit.round import Verdict
from server_kit.selection import Oort
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names

Plan = Mapping[tuple[str, int], Decision]


@dataclass(frozen=True)
class Planned(Never):
    """Decides what the test has planned for a cohort's round."""

    plan: Plan = field(default_factory=dict)

    def look(self, seen: Any, memory: Any, federation: Any, rng: Any) -> Look:
        return Look(self.plan.get((seen.cohort, seen.round)))


def halves(devices: Sequence[str], cohort: str = "0") -> Split:
    return Split(cohort, 2, {device: number % 2 for number, device in enumerate(devices)})


def play(plan: Plan | None = None, devices: int = 8, **more: Any) -> Play:
    fleet = ScriptedFleet(names(devices))
    participants = more.pop("participants", 100)
    strategy = Strategy("planned", **{"formation": Planned(plan or {}), "matcher": Assigned(), **more})
    return Play(strategy, fleet, participants)


def answer_all(now: Play, orders: Sequence[Order]) -> None:
    for order in orders:
        now.answer(order, seconds=0.0)


class TestAsking:
    def test_each_leaf_has_its_share_of_the_places(self):
        now = play({("0", 1): halves(names(8))}, participants=5)
        assert len(now.invite()) == 5
        answer_all(now, now.fleet.orders)
        now.federation.fold("0", 1.0)
        asked = now.invite()
        assert sorted(order.cohort for order in asked) == ["0.0", "0.0", "0.1", "0.1"]

    def test_shared_places_go_to_devices_of_any_leaf(self):
        now = play({("0", 1): halves(names(8))}, participants=5, budget="shared")
        now.round()
        assert len(now.invite()) == 5

    def test_a_leaf_asks_again_once_somebody_is_there(self):
        now = play()
        away, now.fleet.devices = now.fleet.devices, []
        assert now.invite() == []
        now.fleet.devices = away
        assert len(now.invite()) == 8

    @pytest.mark.parametrize("budget", ["each", "shared"])
    def test_when_everybody_who_was_asked_is_lost_a_round_begins_anew(self, budget):
        now = play(participants=3, budget=budget)
        for order in now.invite():
            now.federation.lost(order.device)
        assert len(now.invite()) == 3
        assert now.federation.due(5.0) == []

    def test_who_is_lost_is_replaced(self):
        now = play(participants=3)
        gone = now.invite()[0].device
        now.fleet.devices.remove(gone)
        now.federation.lost(gone)
        (other,) = now.invite()
        assert other.device not in {order.device for order in now.fleet.orders[:3]}

    def test_past_the_deadline_others_are_asked_for_those_who_are_given_up(self):
        now = play(participants=3, deadline_seconds=10.0)
        first = {order.device for order in now.invite()}
        assert now.federation.next_deadline(0.0) == 10.0
        now.now = 5.0
        assert now.invite() == []
        now.now = 10.0
        assert not {order.device for order in now.invite()} & first
        assert now.federation.next_deadline(10.0) == 20.0

    def test_at_the_deadline_a_leaf_goes_on_with_who_came(self):
        now = play(participants=3, deadline_seconds=10.0)
        now.answer(now.invite()[0])
        assert now.federation.due(9.9) == []
        assert now.federation.due(10.0) == ["0"]

    def test_a_sample_of_many_waiting_devices_is_looked_at(self):
        now = play(devices=30)
        now.federation.plan = replace(now.federation.plan, check_ins=7)
        assert len(now.invite()) == 7


class TestAnswers:
    def test_a_stranger_is_not_counted(self):
        now = play(participants=3)
        now.invite()
        assert now.federation.receive("stranger", 1.0) is Verdict.NOT_ASKED
        assert now.federation.refusals["not asked"] == 1

    def test_latency_and_participation_are_noted(self):
        now = play(participants=8)
        orders = now.invite()
        now.now = 2.0
        answer_all(now, orders)
        now.federation.fold("0", 2.0)
        view = now.state.views["d3"]
        assert (view.latency_seconds, view.participations, view.last_round, view.staleness) == (2.0, 1, 1, 0)

    def test_what_leaves_remember_and_what_is_shared_are_kept_apart(self):
        now = play(participants=2, budget="shared", selector=Oort())
        now.round()
        assert now.federation.memory["selection"]["rounds"] == 1
        assert now.state.cohorts["0"].selection == {}

    def test_updates_that_cannot_be_folded_are_counted_and_the_round_goes_on(self):
        now = play(participants=8)
        now.fleet.delta = lambda device, order: [float("nan")] * SIZE if device < "d3" else [1.0] * SIZE
        now.round()
        assert now.federation.refusals["not finite"] == 3
        assert torch.equal(now.federation.model("0"), torch.ones(SIZE))
        assert now.state.views["d0"].participations == 0


class TestSplit:
    def test_children_take_over_the_optimiser_and_go_their_own_way(self):
        now = play({("0", 2): halves(names(8))}, aggregator=FedYogi())
        now.round()
        now.round()
        parent = now.state.cohorts["0"].aggregation
        for child in ("0.0", "0.1"):
            assert torch.equal(now.state.cohorts[child].aggregation["second"], parent["second"])
        before = parent["second"].clone()
        now.round()
        assert torch.equal(parent["second"], before)
        assert not torch.equal(now.state.cohorts["0.0"].aggregation["second"], before)

    def test_members_nobody_has_heard_of_go_where_most_go(self):
        now = play({("0", 1): Split("0", 2, {"d0": 0, "d1": 1, "d2": 1})})
        now.federation.memory["assigned"] = dict.fromkeys(names(8), "0")
        now.round()
        assert now.federation.members("0.0") == ["d0"]
        assert now.federation.members("0.1") == names(8)[1:]

    def test_models_that_come_with_a_split_are_where_children_begin(self):
        models = [torch.zeros(SIZE), torch.ones(SIZE)]
        now = play({("0", 1): Split("0", 2, models=models)})
        now.round()
        assert torch.equal(now.federation.model("0.1"), models[1])
        assert now.federation.model("0.1").data_ptr() != models[1].data_ptr()

    def test_answers_under_way_belong_to_the_heir(self):
        now = play({("0", 1): halves(names(8))}, buffer=1, aggregator=FedBuff(), participants=3)
        first, second, third = now.invite()
        now.answer(first)
        now.federation.fold("0", 1.0)
        for order in (second, third):
            heir = f"0.{int(order.device[1]) % 2}"
            assert now.state.out[order.device] == heir
            now.answer(order)
            (ticket,) = now.state.cohorts[heir].arrived
            assert (ticket.device, ticket.staleness) == (order.device, 1)
            now.federation.fold(heir, 2.0)

    def test_stragglers_of_the_parent_are_late_for_the_child(self):
        now = play({("0", 1): halves(names(8))}, over_commit=2.0, participants=2)
        orders = now.invite()
        answer_all(now, orders[:2])
        now.federation.fold("0", 1.0)
        assert now.federation.receive(orders[2].device, 2.0) is Verdict.LATE
        assert now.federation.refusals["late"] == 1


class TestMerge:
    def merged(self) -> tuple[Play, list[Order], Change]:
        """Two children; one of them folds, and the verdict is to merge while the other is in the middle of a round."""
        decisions: Plan = {("0", 1): halves(names(8)), ("0.0", 2): Merge("0", torch.full((SIZE,), 5.0))}
        now = play(decisions, participants=4)
        now.round()
        orders = now.invite()
        other = [order for order in orders if order.cohort == "0.1"]
        now.answer(other[0])
        answer_all(now, [order for order in orders if order.cohort == "0.0"])
        change = now.federation.fold("0.0", 3.0)[1]
        assert change is not None
        return now, other, change

    def test_the_parent_trains_again_from_the_model_it_is_given(self):
        now, _, change = self.merged()
        assert isinstance(change.decision, Merge)
        assert now.federation.leaves == ["0"]
        assert torch.equal(now.federation.model("0"), torch.full((SIZE,), 5.0))
        assert now.federation.members("0") == names(8)

    def test_what_has_arrived_and_what_is_out_is_not_lost(self):
        now, (first, second), _ = self.merged()
        cohort = now.state.cohorts["0"]
        assert [ticket.device for ticket in cohort.arrived] == [first.device]
        assert list(cohort.asked) == [second.device]
        assert now.federation.due(now.now) == []
        now.answer(second)
        assert now.federation.due(now.now) == ["0"]
        assert set(now.federation.fold("0", now.now)[0].arrived) == {first.device, second.device}

    def test_what_was_refused_stays_counted(self):
        decisions: Plan = {("0", 1): halves(names(8)), ("0.0", 2): Merge("0", torch.zeros(SIZE))}
        now = play(decisions)
        now.round()
        now.state.cohorts["0.1"].refusals["late"] += 2
        now.round()
        assert now.federation.leaves == ["0"]
        assert now.federation.refusals["late"] == 2

    def test_ids_are_not_used_again(self):
        now, _, _ = self.merged()
        now.state.tree = now.state.tree.split("0", 2)
        assert now.federation.leaves == ["0.2", "0.3"]


class TestBans:
    def banned(self, until: int, leaves: int = 4) -> Play:
        now = play({("0", 1): Split("0", leaves)}, matcher=ByRequest())
        now.round()
        now.federation.memory["banned_until"] = {"d0": until}
        return now

    def test_a_ban_lasts_as_many_rounds_as_it_says_however_many_cohorts_there_are(self):
        now = self.banned(4)
        for round_number in (2, 3, 4):
            now.fleet.orders.clear()
            now.round()
            assert "d0" not in {order.device for order in now.fleet.orders}, round_number
        now.round()
        assert "d0" in {order.device for order in now.fleet.orders}
        assert now.federation.memory["banned_until"] == {}


class TestWelcome:
    @dataclass(frozen=True)
    class Noting(Never):
        welcomed: list[list[str]] = field(default_factory=list)

        def welcome(self, newcomers: Any, federation: Any, rng: Any) -> None:
            self.welcomed.append(sorted(newcomers))

    def test_newcomers_are_welcomed_once_and_again_when_their_data_change(self):
        noting = self.Noting()
        now = play(formation=noting, devices=3)
        now.round()
        now.fleet.devices.append("late")
        now.round()
        now.fleet.changed = {"d1"}
        now.round()
        assert noting.welcomed == [names(3), ["late"], ["d1"]]

    def test_who_was_founded_with_is_no_newcomer(self):
        noting = self.Noting()
        now = play(formation=noting, devices=3)
        now.federation.memory["assigned"] = {"d0": "0"}
        now.federation.begin()
        now.round()
        assert noting.welcomed == [["d1", "d2"]]


class TestMixing:
    @dataclass(frozen=True)
    class Plus:
        def mixed(self, models: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
            return {cohort: model + 100 for cohort, model in models.items()}

    def test_cohorts_learn_from_each_other_once_all_have_moved_on(self):
        now = play({("0", 1): halves(names(8))}, mixing=self.Plus(), budget="shared")
        now.round()
        assert now.federation.model("0.0")[0] == 101
        answer_all(now, now.invite())
        now.federation.fold("0.0", 2.0)
        assert now.federation.model("0.0")[0] == 102
        now.federation.fold("0.1", 2.0)
        assert [now.federation.model(leaf)[0] for leaf in ("0.0", "0.1")] == [202, 202]


def test_a_formation_sees_what_it_wants_and_what_devices_claimed():
    @dataclass(frozen=True)
    class Looking(Planned):
        looks: list[Any] = field(default_factory=list)

        @property
        def wants(self) -> Wants:
            return Wants(updates=True, halves=True)

        def look(self, seen: Any, memory: Any, federation: Any, rng: Any) -> Look:
            self.looks.append(seen)
            return Look()

    looking = Looking()
    now = play(formation=looking, devices=2)
    now.fleet.requests = {"d1": CheckIn("d1", "0", 1, 0.5)}
    now.fleet.delta = lambda device, order: [float(device[1])] * SIZE
    now.round()
    (look,) = looking.looks
    assert all(order.task.halves for order in now.fleet.orders)
    assert look.updates.tolist() == [[0.0] * SIZE, [1.0] * SIZE]
    assert look.claims["d1"] == CheckIn("d1", "0", 1, 0.5)
    assert look.halves is None  # nobody sent any
