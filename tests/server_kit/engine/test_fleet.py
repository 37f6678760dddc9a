"""Simulated devices train when their answer is read, alone or in company, and never for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from device_sdk.affinity import Affinity, AffinityRecord
from server_kit.aggregation import QFedAvg
from server_kit.interfaces import DeviceView, Order, SummaryRequest, Trained
from server_kit.local_task import LocalTask
from server_kit.presets import strategy
from server_kit.round import Ticket
from server_kit.simulation import fleet as fleet_module
from server_kit.simulation.changes import LabelFlip, Shift
from server_kit.simulation.device_speeds import FactorSpeeds
from server_kit.simulation.fleet import SimulatedFleet
from server_kit.simulation.local_training import kept
from server_kit.simulation.partition import Dirichlet, LogNormal
from server_kit.simulation.training import Trainer
from tests.server_kit.engine.worlds import ALIKE, SPEC, TASK, people, run, same, small, world


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    with Trainer(SPEC) as trainer:
        yield trainer


@pytest.fixture
def fleet(trainer: Trainer) -> SimulatedFleet:
    return SimulatedFleet(people(Dirichlet(0.5, LogNormal(mean_samples=20))), trainer, seed=3)


def orders(devices: list[str], task: LocalTask = TASK) -> list[Order]:
    """Devices of two cohorts, each with a model of its own."""
    models = [SPEC.initial(1), SPEC.initial(2)]
    return [Order(device, f"0.{int(device) % 2}", 4, models[int(device) % 2], task) for device in devices]


def delivered(fleet: SimulatedFleet, devices: list[str]) -> list[str]:
    """Let the answers of these devices arrive."""
    for device in devices:
        if device in fleet.expected:
            assert fleet.arrives(device, 0.0)
    return devices


def read(fleet: SimulatedFleet, devices: list[str]) -> dict[str, Any]:
    tickets = [Ticket(device, 4, 2) for device in delivered(fleet, devices)]
    return {update.device: kept(update) for update in fleet.read(tickets)}


class TestTraining:
    @pytest.mark.parametrize("task", [TASK, replace(TASK, halves=True), replace(TASK, momentum=0.5, proximal=0.1)])
    def test_updates_equal_those_of_devices_trained_one_at_a_time(self, fleet, trainer, task):
        asked = orders(["1", "2", "3", "6", "7"], task)
        fleet.dispatch(asked, 0.0)
        updates = read(fleet, [order.device for order in asked])
        data = fleet.population.device_data("train")
        plain = replace(task, halves=False)
        for order in asked:
            alone = trainer.train(order.model, data, [order.device], plain, seed=3).updates[0]
            torch.testing.assert_close(updates[order.device].delta, alone)
            assert (updates[order.device].halves is not None) == task.halves

    def test_an_update_says_what_it_is(self, fleet):
        fleet.dispatch(orders(["3"]), 0.0)
        update = read(fleet, ["3"])["3"]
        records = fleet.population.num_samples("3")
        assert (update.base_version, update.staleness, update.weight) == (4, 2, records)
        assert update.steps == TASK.steps_for(records)
        assert torch.equal(update.base, SPEC.initial(2))
        assert update.loss is None

    def test_losses_are_those_of_the_model_that_was_handed_out(self, fleet, trainer):
        fleet.reports_loss = True
        fleet.dispatch(orders(["3"]), 0.0)
        expected = trainer.evaluate(SPEC.initial(2), fleet.population.device_data("train"), ["3"]).losses[0]
        assert read(fleet, ["3"])["3"].loss == pytest.approx(float(expected), rel=1e-5)

    def test_tickets_are_answered_in_their_order_however_often_they_are_read(self, fleet):
        fleet.dispatch(orders(["7", "1", "4"]), 0.0)
        devices = delivered(fleet, ["4", "7", "1"])
        answers = fleet.read([Ticket(device, 4, number) for number, device in enumerate(devices)])
        first, second = ([(each.device, each.staleness, each.delta.clone()) for each in answers] for _ in range(2))
        assert [(device, staleness) for device, staleness, _ in first] == [("4", 0), ("7", 1), ("1", 2)]
        assert same(first, second)

    def test_too_much_to_keep_is_trained_again_with_the_same_result(self, fleet, monkeypatch):
        fleet.dispatch(orders(["7", "1", "4"]), 0.0)
        before = {device: update.delta for device, update in read(fleet, ["7", "1", "4"]).items()}
        fleet.trained.clear()
        monkeypatch.setattr(fleet_module, "_MOST_HELD", 1)
        answers = fleet.read([Ticket(device, 4, 0) for device in ("7", "1", "4")])
        for _ in range(2):
            assert {each.device: each.delta.tolist() for each in answers} == {
                device: delta.tolist() for device, delta in before.items()
            }
        assert fleet.trained == {}

    def test_each_participation_of_a_device_draws_other_batches(self, fleet):
        fleet.dispatch(orders(["3"]), 0.0)
        first = read(fleet, ["3"])["3"].delta.clone()
        fleet.forget([("3", 0.0)])
        fleet.dispatch(orders(["3"]), 0.0)
        assert not torch.equal(read(fleet, ["3"])["3"].delta, first)

    def test_devices_with_different_tasks_do_what_each_was_asked(self, fleet, trainer):
        asked = [
            *orders(["2"]),
            *orders(["4"], replace(TASK, epochs=3)),
            *orders(["6"], replace(TASK, learning_rate=0.5)),
        ]
        fleet.dispatch(asked, 0.0)
        updates = read(fleet, ["2", "4", "6"])
        data = fleet.population.device_data("train")
        for order in asked:
            alone = trainer.train(order.model, data, [order.device], order.task, seed=3).updates[0]
            torch.testing.assert_close(updates[order.device].delta, alone)

    def test_masks_are_kept_to_and_shared_by_devices_that_have_equal_ones(self, fleet, trainer):
        masks = [torch.arange(SPEC.layout.size) % 3 != number for number in (0, 1, 0)]
        asked = [
            order
            for device, mask in zip(["2", "4", "6"], masks, strict=True)
            for order in orders([device], replace(TASK, mask=mask))
        ]
        fleet.dispatch(asked, 0.0)
        updates = read(fleet, ["2", "4", "6"])
        for order, mask in zip(asked, masks, strict=True):
            assert bool((updates[order.device].delta[~mask] == 0).all())
            assert bool((updates[order.device].delta[mask] != 0).any())

    def test_a_device_trains_on_the_data_it_had_when_it_was_asked(self, trainer):
        population = people(shifts=(Shift(1.0, 2, label_shift=1),))
        fleet = SimulatedFleet(population, trainer)
        fleet.dispatch(orders(["0"]), 0.0)
        fleet.round = 2
        fleet.dispatch(orders(["1"]), 0.0)
        updates = read(fleet, ["0", "1"])
        for device, then in (("0", 0), ("1", 2)):
            data = population.device_data("train", then)
            alone = trainer.train(SPEC.initial(1 + int(device)), data, [device], TASK, seed=0).updates[0]
            torch.testing.assert_close(updates[device].delta, alone)


@dataclass
class Counted:
    """Which devices a trainer was asked to train, and how often."""

    monkeypatch: pytest.MonkeyPatch

    def __enter__(self) -> Counter[str]:
        trained: Counter[str] = Counter()
        for name in ("train_in_chunks", "sum_in_chunks"):
            self.monkeypatch.setattr(Trainer, name, self._counting(getattr(Trainer, name), trained))
        return trained

    def _counting(self, original: Any, trained: Counter[str]) -> Any:
        def counting(trainer: Trainer, *, devices: Any, **more: Any) -> Any:
            trained.update(devices)
            return original(trainer, devices=devices, **more)

        return counting

    def __exit__(self, *_: object) -> None:
        self.monkeypatch.undo()


class TestNothingForNothing:
    def test_stragglers_are_not_trained(self, monkeypatch):
        with Counted(monkeypatch) as trained:
            run("fedavg", people(speeds=FactorSpeeds()), small(4, 3), overrides={"over_commit": 2.0})
        assert trained.total() == 4 * 3

    def test_an_update_is_trained_once_however_often_it_is_read(self, monkeypatch):
        with Counted(monkeypatch) as trained:
            run("qfedavg", settings=small(4, 3))  # which reads twice
        assert trained.total() == 4 * 3

    def test_an_aggregator_that_does_not_say_that_it_reads_again_is_noticed(self, monkeypatch):
        monkeypatch.delattr(QFedAvg, "reads_again")
        with Counted(monkeypatch) as trained:
            run("qfedavg", settings=small(4, 3))
        assert trained.total() == (1 + 4) * 3  # the first round is trained again for the second look

    def test_whoever_reads_again_gets_the_same_bits_from_memory_and_from_training(self, monkeypatch):
        remembering = run("qfedavg", settings=small(4, 3))
        monkeypatch.setattr(fleet_module, "_MOST_HELD", 1)
        assert same(run("qfedavg", settings=small(4, 3)), remembering)

    @pytest.mark.parametrize("name", ["fedasync", "fedbuff", "casa", "casa_plus"])
    def test_training_ahead_gives_the_same_bits_as_training_on_demand(self, name, monkeypatch):
        population = people(speeds=FactorSpeeds(), shifts=(Shift(0.5, 2, label_shift=1),))
        overrides = {"buffer": 2} if name == "fedbuff" else {}
        ahead = run(name, population, small(4, 6), overrides=overrides)
        monkeypatch.setattr(fleet_module._Answers, "_also", lambda *_: [])
        assert same(run(name, population, small(4, 6), overrides=overrides), ahead)

    def test_where_one_answer_comes_at_a_time_they_are_worked_out_together(self, monkeypatch):
        calls: list[int] = []
        original = SimulatedFleet.train

        def counting(fleet: SimulatedFleet, *work: Any) -> Any:
            calls.append(sum(map(len, work)))
            return original(fleet, *work)

        monkeypatch.setattr(SimulatedFleet, "train", counting)
        run("fedasync", settings=small(4, 6))
        assert max(calls) == 6
        assert sum(calls) <= 4 * 6 + 6

    def test_training_costs_what_was_trained(self, fleet):
        mask = torch.zeros(SPEC.layout.size, dtype=torch.bool)
        mask[:100] = True
        fleet.dispatch([*orders(["0"]), *orders(["2"], replace(TASK, mask=mask))], 0.0)
        assert fleet.tally.bytes_down == 2 * 4 * SPEC.layout.size
        assert fleet.tally.bytes_up == 4 * SPEC.layout.size + 4 * 100
        records = [fleet.population.num_samples(device) for device in ("0", "2")]
        assert fleet.tally.steps == sum(map(TASK.steps_for, records))


class TestWhatDevicesSay:
    def test_attackers_lie_in_training_and_are_tested_on_the_truth(self, trainer):
        honest, lying = people(), people(label_flip=LabelFlip(0.5))
        attackers = [device for device in lying.devices if lying.attackers[int(device)]]
        assert len(attackers) == 6
        for device in lying.devices:
            said = (honest.samples(device).y + (device in attackers)) % 10
            np.testing.assert_array_equal(lying.samples(device).y, said)
            np.testing.assert_array_equal(lying.samples(device, "test").y, honest.samples(device, "test").y)

    def test_attackers_do_harm(self):
        settings = small(20, 12, task=LocalTask(0.1, epochs=4))
        honest, misled = (
            run("fedavg", people(ALIKE, label_flip=LabelFlip(share)), settings).points[-1].spread.mean
            for share in (0.0, 0.34)
        )
        assert honest > misled + 0.1

    @pytest.mark.parametrize(("chance", "left"), [(0.0, 12), (1.0, 0)])
    def test_records_are_lost_as_often_as_was_said(self, chance, left):
        with world("auxo", people(affinity_loss=chance)) as now:
            devices = now.population.devices
            now.fleet.records = dict.fromkeys(devices, AffinityRecord({"0": Affinity(1.0, 1)}))
            now.fleet.check_ins(devices, ["0"], exploring=False)
            assert len(now.fleet.records) == 12  # nobody loses anything by being looked at
            said = now.fleet.check_ins(devices, ["0"])
            assert [check_in.sub_cluster for check_in in said] == [1] * left + [None] * (12 - left)
            assert len(now.fleet.records) == left

    def test_choices_are_the_models_with_the_least_loss(self, fleet, trainer):
        models = torch.stack([SPEC.initial(number) for number in range(3)])
        devices = list(fleet.population.devices)
        data = fleet.population.device_data("train")
        losses = [[float(trainer.evaluate(model, data, [each]).losses[0]) for model in models] for each in devices]
        assert fleet.choices(devices, models) == {
            device: int(np.argmin(row)) for device, row in zip(devices, losses, strict=True)
        }

    def test_truth_is_told_where_there_is_one(self, trainer):
        fleet = SimulatedFleet(people(), trainer)
        groups = fleet.population.true_groups()
        told = fleet.summaries(SummaryRequest("truth"), ["3", "5"])
        assert groups is not None
        assert {device: int(row) for device, row in told.items()} == {"3": groups[3], "5": groups[5]}


def test_a_task_may_differ_from_device_to_device():
    @dataclass(frozen=True)
    class ShortForNewcomers:
        def task_for(self, usual: LocalTask, view: DeviceView, cohort: Trained) -> LocalTask:
            return usual if view.participations else replace(usual, steps=1)

    chosen = replace(strategy("fedavg"), objective=ShortForNewcomers())
    with world(chosen, settings=small(2, 6)) as now:
        now.go_on()
        assert 12 < now.fleet.tally.steps <= 6 + 6 * 2
