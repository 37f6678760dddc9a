"""Cohorts found at once: FedGroup's cold start, FL+HC at its round, HACCS's clusters for selection, the oracle."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from server_kit.clustering import HierarchicalClustering, Optics
from server_kit.formation.clusterers import Given, RandomCentres, RandomLabels
from server_kit.formation.founding import Founding
from server_kit.formation.several_models import SeveralModels
from server_kit.formation.summaries import FirstUpdates, LabelHistograms, TrueGroups
from server_kit.local_task import LocalTask
from server_kit.matching import Assigned, BestModel
from server_kit.simulation.changes import Newcomers, Shift
from server_kit.simulation.partition import ClassesPerDevice, Equal
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names, rng
from tests.server_kit.engine.worlds import people, small, world


def row(device: str) -> list[float]:
    """Three kinds of devices, each a little its own."""
    number = int(device.lstrip("den"))
    kind = number % 3
    return [5.0 * (kind == 0), 5.0 * (kind == 1), 5.0 * (kind == 2), 0.01 * number]


def play(devices: int = 9, strategy: dict[str, Any] | None = None, **settings: Any) -> Play:
    formation = Founding(**{"summarizer": FirstUpdates(), "clusterer": HierarchicalClustering(clusters=3), **settings})
    given = {"formation": formation, "matcher": Assigned(), "budget": "shared", **(strategy or {})}
    return Play(Strategy("founding", **given), ScriptedFleet(names(devices), row=row))


class TestFedGroup:
    def test_groups_begin_at_the_mean_of_their_founders(self):
        now = play(start="mean_update")
        now.federation.begin()
        for leaf in now.federation.leaves:
            members = now.federation.members(leaf)
            assert len({int(device[1:]) % 3 for device in members}) == 1
            mean = torch.tensor([row(device) for device in members]).mean(dim=0)
            torch.testing.assert_close(now.federation.model(leaf), mean)  # the first model is zero

    def test_without_a_start_of_their_own_they_begin_as_the_root_does(self):
        now = play()
        now.federation.begin()
        assert all(torch.equal(now.federation.model(leaf), torch.zeros(SIZE)) for leaf in now.federation.leaves)

    def test_a_sample_founds_and_the_others_join_the_group_they_are_most_like(self):
        now = play(30, sample=12)
        now.federation.begin()
        assert len(now.fleet.asked_for_summaries[0]) == 12
        now.round()
        assert len(now.fleet.asked_for_summaries[1]) == 18
        for leaf in now.federation.leaves:
            assert len({int(device[1:]) % 3 for device in now.federation.members(leaf)}) == 1
        assert sum(len(now.federation.members(leaf)) for leaf in now.federation.leaves) == 30

    def test_a_newcomer_is_compared_by_direction_and_not_by_length(self):
        now = play()
        now.federation.begin()
        now.fleet.row = lambda device: [0.0, 0.01, 0.0, 0.0]
        now.fleet.devices.append("d99")
        now.round()
        assert now.federation.memory["assigned"]["d99"] == now.federation.memory["assigned"]["d1"]

    def test_who_moves_on_to_other_data_migrates(self):
        now = play()
        now.federation.begin()
        now.round()
        before = now.federation.memory["assigned"]["d0"]
        now.fleet.row, now.fleet.changed = (lambda device: row("d1")), {"d0"}
        now.round()
        assert before != now.federation.memory["assigned"]["d0"] == now.federation.memory["assigned"]["d1"]

    def test_one_kind_of_device_founds_nothing(self):
        now = play(clusterer=Given(), summarizer=TrueGroups())
        now.fleet.row = lambda device: [0.0]
        assert now.federation.begin() is None
        assert now.federation.leaves == ["0"]

    def test_pre_training_is_plain_whatever_a_usual_round_is(self):
        usual = LocalTask(0.1, epochs=7, steps=3, proximal=1.0, halves=True)
        task = FirstUpdates().request(torch.zeros(2), usual).task
        assert task is not None
        assert (task.epochs, task.steps, task.proximal, task.halves) == (1, None, 0.0, False)
        assert FirstUpdates(epochs=None).request(torch.zeros(2), usual).task.steps == 3  # type: ignore[union-attr]

    @pytest.mark.parametrize("name", ["fedgroup", "fedgroup_rcc", "fedgroup_rac", "flexcfl"])
    def test_devices_pre_train_once_before_the_first_round(self, name):
        with world(name, people(devices=12), overrides={"formation": {"sample": 6}}) as now:
            assert sorted(now.fleet.participations.values()) == [1] * 6
            assert now.simulation._now > 0
            now.go_on(1)
            # The other six before they are first asked, and then four of all.
            assert sum(now.fleet.participations.values()) == 12 + 4
            assert len(now.federation.memory["assigned"]) == 12


class TestControls:
    def test_random_labels_mean_nothing(self):
        points = torch.tensor([row(device) for device in names(60)])
        labels = RandomLabels(3).cluster(points, rng()).labels
        kinds = np.arange(60) % 3
        assert all(len(set(kinds[labels == label])) == 3 for label in range(3))

    def test_with_random_centres_each_goes_to_the_one_it_is_most_like(self):
        points = torch.tensor([row(device) for device in names(30)])
        seed = next(seed for seed in range(99) if len(set(rng(seed).choice(30, 3, replace=False) % 3)) == 3)
        labels = RandomCentres(3).cluster(points, rng(seed)).labels
        assert all(len(set(labels[kind::3])) == 1 for kind in range(3))

    def test_more_groups_than_devices_are_no_more_than_devices(self):
        assert RandomCentres(5).cluster(torch.eye(2), rng()).count == 2


class TestFlHc:
    def test_it_clusters_all_who_have_come_at_its_round_and_never_again(self):
        now = play(at_round=3)
        now.federation.begin()
        changes = [now.round() for _ in range(6)]
        assert [len(change) for change in changes] == [0, 0, 1, 0, 0, 0]
        assert now.fleet.asked_for_summaries == [tuple(names(9))]
        assert sorted(len(now.federation.members(leaf)) for leaf in now.federation.leaves) == [3, 3, 3]

    def test_who_comes_later_joins_the_nearest(self):
        now = play(at_round=2)
        now.federation.begin()
        for _ in range(3):
            now.round()
        now.fleet.devices.append("d10")
        now.round()
        assert now.federation.memory["assigned"]["d10"] == now.federation.memory["assigned"]["d1"]

    def test_devices_under_way_are_not_disturbed(self):
        overrides = {"over_commit": 2.0, "formation": {"at_round": 1, "clusterer": {"clusters": 2}}}
        with world("flhc", people(devices=8), small(3, 4), overrides=overrides) as now:
            while len(now.federation.leaves) == 1:
                now.go_on(1)
            assert now.state.out  # stragglers
            assert set(now.state.out) <= set(now.fleet.expected)
            now.go_on()
            assert now.fleet.round == 3

    def test_its_clustering_takes_time(self):
        with world("flhc", people(devices=8), small(3, 4), overrides={"formation": {"at_round": 1}}) as now:
            while len(now.federation.leaves) == 1:
                now.go_on(1)
            alone = now.population.latency_seconds("0", 0, bytes_down=2600, bytes_up=2600, steps=2)
            assert now.simulation._now == pytest.approx(2 * alone)


class TestHaccs:
    def haccs(self, devices: int = 12) -> Play:
        return play(
            devices,
            {"matcher": Assigned(), "budget": "each"},
            summarizer=LabelHistograms(epsilon=None),
            clusterer=Optics(eps=1.0),
            use="selection",
        )

    def clusters(self, now: Play) -> list[set[str]]:
        found: dict[int, set[str]] = {}
        for device, cluster in now.federation.memory["clusters"].items():
            found.setdefault(cluster, set()).add(device)
        return sorted(found.values(), key=min)

    def test_one_model_and_clusters_for_the_selector(self):
        now = self.haccs()
        assert now.federation.begin() is None
        now.round()
        assert now.federation.leaves == ["0"]
        assert self.clusters(now) == [set(names(12)[kind::3]) for kind in range(3)]
        assert now.federation.view("d4").cluster == now.federation.memory["clusters"]["d1"]

    def test_a_few_newcomers_join_and_many_make_clusters_be_found_anew(self):
        now = self.haccs(30)
        now.federation.begin()
        now.round()
        now.fleet.row = lambda device: [0.0, 0.0, 0.0, 90.0] if device.startswith("e") else row(device)
        now.fleet.devices += names(2, "e")
        now.round()
        assert len(self.clusters(now)) == 3  # two of thirty
        now.fleet.devices.append("e2")
        now.round()
        assert {"e0", "e1", "e2"} in self.clusters(now)

    def test_a_device_whose_data_change_makes_clusters_be_found_anew(self):
        now = self.haccs()
        now.federation.begin()
        now.round()
        now.fleet.row, now.fleet.changed = (lambda device: [0.0, 0.0, 0.0, 90.0]), {"d0"}
        now.round()
        assert {"d0"} in self.clusters(now)

    def test_a_change_of_data_is_told_once_however_often_a_device_checks_in(self):
        population = people(ClassesPerDevice(2, Equal(20)), 10, shifts=(Shift(1.0, 2, label_shift=3),))
        overrides = {"formation": {"summarizer": {"epsilon": 5.0}}}
        with world("haccs", population, small(5, 3), overrides=overrides) as now:
            now.go_on()
            assert set(now.fleet.summarised.values()) == {2}

    def test_a_device_that_was_away_tells_of_its_change_when_it_is_back(self):
        population = people(ClassesPerDevice(2, Equal(20)), 10, shifts=(Shift(1.0, 2, label_shift=3),))
        with world("haccs", population, small(5, 3)) as now:
            now.go_on(1)
            now.fleet.round = 4  # the round of the shift went by
            assert all(check_in.changed for check_in in now.fleet.check_ins(["1", "2"], ["0"]))
            assert not any(check_in.changed for check_in in now.fleet.check_ins(["1", "2"], ["0"]))

    def test_who_joins_after_the_change_has_nothing_to_tell(self):
        population = people(devices=8, shifts=(Shift(1.0, 2, label_shift=3),), newcomers=(Newcomers(0.5, 3),))
        with world("fedavg", population) as now:
            now.fleet.round = 3
            late = [device for device in population.devices if population.joins_at_round[int(device)] == 3]
            assert not any(check_in.changed for check_in in now.fleet.check_ins(late, ["0"]))


class TestIfca:
    def ifca(self, participants: int = 100) -> Play:
        strategy = Strategy("ifca", formation=SeveralModels(3), matcher=BestModel(), budget="shared")
        now = Play(strategy, ScriptedFleet(names(6)), participants)
        now.federation.begin()
        return now

    def test_it_begins_with_as_many_different_models_as_it_is_told(self):
        now = self.ifca()
        assert [now.federation.model(leaf)[0] for leaf in now.federation.leaves] == [0, 1, 2]

    def test_a_model_that_nobody_chooses_stays_as_it_is(self):
        now = self.ifca()
        now.fleet.prefers = lambda device, models: 2 * (int(device[1:]) % 2)
        now.round()
        assert [now.federation.model(leaf)[0] for leaf in now.federation.leaves] == [1, 1, 3]
        assert now.state.cohorts["0.1"].version == 0

    def test_devices_may_change_their_mind_in_every_round(self):
        now = self.ifca()
        for choice in range(3):
            now.fleet.prefers = partial(lambda choice, device, models: choice, choice)
            now.round()
        assert [now.federation.model(leaf)[0] for leaf in now.federation.leaves] == [1, 2, 3]

    def test_only_those_who_take_part_are_asked(self):
        asked: list[str] = []
        now = self.ifca(2)

        def choose(device: str, models: torch.Tensor) -> int:
            asked.append(device)
            return 0

        now.fleet.prefers = choose
        now.round()
        assert sorted(asked) == sorted(order.device for order in now.fleet.orders)
        assert len(asked) == 2


def test_the_oracle_knows():
    with world("oracle", people(devices=12)) as now:
        groups = now.population.true_groups()
        assert groups is not None
        for leaf in now.federation.leaves:
            assert len({int(groups[int(device)]) for device in now.federation.members(leaf)}) == 1
        assert len(now.federation.leaves) == 2
