"""Defined outcomes where little is as it should be: nobody there, everybody gone, nonsense sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.interfaces import DeviceView
from server_kit.selection import ClusterWeighted
from server_kit.simulation import virtual_time as simulate_module
from server_kit.simulation.availability import DropOut
from server_kit.simulation.changes import Newcomers
from server_kit.simulation.device_speeds import FactorSpeeds
from server_kit.simulation.partition import ClassesPerDevice, Equal, GivenSizes, Iid
from server_kit.simulation.population import Population
from server_kit.simulation.training import round_work
from server_kit.simulation.training.descent import descend
from tests.server_kit.engine.scripted import names, rng
from tests.server_kit.engine.test_invariants import TOGETHER
from tests.server_kit.engine.worlds import digits, people, run, small, world


@dataclass(frozen=True)
class Away:
    """All devices are away from one time to another."""

    since: float
    until: float = math.inf

    def draw(self, num_devices, seed):
        return self

    def available(self, devices, time_seconds):
        return np.full(len(devices), not self.since <= time_seconds < self.until)


@pytest.mark.parametrize("name", TOGETHER)
class TestEveryPreset:
    def test_nobody_there_for_a_while(self, name):
        ended = run(name, people(availability=Away(0, 600)), small(3))
        assert ended.points[-1].progress.round >= 2
        assert ended.points[-1].progress.seconds > 600

    def test_everybody_gone_in_the_middle_of_a_round(self, name):
        ended = run(name, people(availability=Away(0.15, 300)), small(3))
        assert ended.points[-1].progress.round >= 2

    def test_fewer_devices_than_places(self, name):
        ended = run(name, people(devices=3), small(3, 10))
        assert ended.points[-1].progress.round >= 2

    def test_one_device(self, name):
        ended = run(name, people(devices=1), small(3, 2))
        assert ended.points[-1].progress.round >= 2

    def test_updates_that_are_not_finite_are_counted_and_left_out(self, name, monkeypatch):
        made = descend

        def broken(kernel, chunk, vectors, *rest):
            ended = made(kernel, chunk, vectors, *rest)
            vectors[0][[int(device) % 2 == 0 for device in chunk.devices]] = math.nan
            return ended

        monkeypatch.setattr(round_work, "descend", broken)
        with world(name, settings=small(3, 6)) as now:
            now.go_on()
            assert now.federation.refusals["not finite"] >= 1
            assert now.fleet.round >= 3
            assert all(bool(torch.isfinite(now.federation.model(leaf)).all()) for leaf in now.federation.leaves)
            assert all(now.state.views[device].participations == 0 for device in ("0", "2", "4"))


class TestNobodyEver:
    def test_a_run_ends_at_its_time(self):
        ended = run("fedavg", people(availability=Away(0)), small(3, max_seconds=3600.0))
        assert [point.progress.round for point in ended.points] == [0]

    def test_a_run_without_an_end_is_given_up(self, monkeypatch):
        monkeypatch.setattr(simulate_module, "_MOST_IDLE", 50)
        ended = run("auxo", people(availability=Away(0)))
        assert len(ended.points) == 1
        assert len(ended.device_accuracies) == 12

    def test_where_nobody_ever_joins_nobody_is_tested(self):
        ended = run("fedavg", people(newcomers=(Newcomers(1.0, 3),)), small(5, max_seconds=600.0))
        assert ended.device_accuracies == ()
        assert math.isnan(ended.points[-1].spread.mean)
        assert ended.points[-1].agreement is None


class TestDropOuts:
    def test_an_answer_is_lost_with_its_device_and_another_is_asked(self):
        population = people(devices=12, availability=DropOut(0.4, 0.15))
        with world("fedavg", population, small(4, 4)) as now:
            lost = 0
            forget = now.fleet.arrives

            def arrives(device, at):
                nonlocal lost
                there = forget(device, at)
                lost += not there
                return there

            now.fleet.arrives = arrives
            now.go_on()
            assert lost > 0
            assert now.fleet.round == 4
            assert sum(now.fleet.participations.values()) == lost + sum(
                view.participations for view in now.state.views.values()
            ) + len(now.state.out)


class TestDeadlines:
    def test_the_slow_are_not_waited_for(self):
        population = people(speeds=FactorSpeeds(delay_chance=0.0))
        slowest = max(
            population.latency_seconds(device, 0, bytes_down=2600, bytes_up=2600, steps=2)
            for device in population.devices
        )
        with world("fedavg", population, small(1, 12), overrides={"deadline_seconds": slowest / 3}) as now:
            while now.state.cohorts["0"].version == 0:
                now.go_on(1)
            assert now.simulation._now == pytest.approx(slowest / 3)
            assert len(now.state.out) > 0

    def test_a_late_answer_is_folded_into_the_next_model_where_that_is_wanted(self):
        population = people(speeds=FactorSpeeds(delay_chance=0.0))
        overrides = {"deadline_seconds": 0.5, "fold_late": True, "aggregator": "fedbuff"}
        with world("fedavg", population, small(6, 12), overrides=overrides) as now:
            stale = []
            for _ in now.events():
                stale += [ticket.staleness for ticket in now.state.cohorts["0"].arrived]
            assert max(stale) > 0
            assert now.federation.refusals["late"] == 0

    def test_a_deadline_before_anyone_can_answer_asks_others_until_somebody_does(self):
        with world("fedavg", people(devices=12), small(1, 3), overrides={"deadline_seconds": 0.05}) as now:
            now.go_on()
            assert now.fleet.round == 1
            assert len(now.fleet.participations) > 3


class TestOddData:
    @pytest.mark.parametrize("name", ["fedavg", "haccs", "fedgroup", "casa", "covey"])
    def test_one_class(self, name):
        whole = digits()
        only = replace(whole, x=whole.x[whole.y == 3], y=whole.y[whole.y == 3])
        ended = run(name, Population(only, Iid(Equal(8)), 8), small(3))
        assert ended.points[-1].spread.mean > 0.5

    def test_devices_of_one_class_each(self):
        ended = run("haccs", people(ClassesPerDevice(1, Equal(12)), 20), small(3))
        assert ended.points[-1].progress.round >= 2

    def test_devices_with_a_single_record(self):
        ended = run("auxo", people(Iid(GivenSizes((1, 1, 2, 30, 30, 30))), 6), small(3))
        assert ended.points[-1].progress.round >= 2


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    count=st.integers(1, 20),
    draw=st.sampled_from(["stratified", "with_replacement"]),
)
def test_an_exhausted_cluster_is_drawn_no_more(sizes, count, draw):
    clusters = [cluster for cluster, size in enumerate(sizes) for _ in range(size)]
    waiting = [DeviceView(device, cluster=cluster) for device, cluster in zip(names(99), clusters, strict=False)]
    chosen = ClusterWeighted(draw=draw).select(waiting, count, {}, rng())
    assert len(chosen) == len(set(chosen)) == min(count, len(waiting))
