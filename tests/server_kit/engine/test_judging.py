"""How good a run is: each device with the model it would use, fine-tuned where that is the method, or alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from server_kit.errors import InvalidSetting
from server_kit.presets import strategy
from server_kit.simulation import judging
from server_kit.simulation.changes import Newcomers
from server_kit.simulation.judging import Judge
from server_kit.simulation.metrics import agreement
from server_kit.simulation.partition import ClassesPerDevice, Equal
from server_kit.simulation.training import Trainer
from server_kit.simulation.virtual_time import RunSettings, simulate
from tests.server_kit.engine.test_invariants import EAGER, TOGETHER
from tests.server_kit.engine.worlds import ALIKE, SPEC, TASK, people, run, same, small, world


def accuracy(trainer: Trainer, model: torch.Tensor, population, device: str) -> float:
    return float(trainer.evaluate(model, population.device_data("test"), [device]).accuracies[0])


class TestEvaluation:
    @pytest.mark.parametrize("name", TOGETHER)
    def test_looking_at_a_run_does_not_change_it(self, name):
        with world(name, settings=small(3), overrides=EAGER.get(name)) as watched:
            for _ in watched.events():
                watched.simulation._evaluate()
            with world(name, settings=small(3, evaluate_every=99), overrides=EAGER.get(name)) as unwatched:
                unwatched.go_on()
                assert same(watched.state, unwatched.state)
                assert same(watched.fleet.tally, unwatched.fleet.tally)

    def test_each_device_is_tested_with_the_model_of_its_cohort(self):
        with world("oracle", settings=small(2)) as now:
            now.go_on()
            accuracies, homes = now.simulation._judge.everyone(now.federation, now.fleet)
            for device, found in zip(homes, accuracies, strict=True):
                own = now.federation.model(now.federation.memory["assigned"][device])
                assert found == pytest.approx(accuracy(now.trainer, own, now.population, device))

    def test_points_add_up(self):
        ended = run("oracle", settings=small(4))
        for point in ended.points:
            assert sum(cohort.devices for cohort in point.cohorts.values()) == 12
            weighted = sum(cohort.devices * cohort.accuracy for cohort in point.cohorts.values()) / 12
            assert weighted == pytest.approx(point.spread.mean) == pytest.approx(point.progress.accuracy)
        assert ended.points[-1].agreement == 1.0
        assert [point.progress.round for point in ended.points] == [0, 2, 4]

    def test_a_curve_ends_where_the_run_does(self):
        assert [point.progress.round for point in run("fedavg", settings=small(3)).points] == [0, 2, 3]

    def test_agreement_is_that_of_the_clusters_where_there_is_one_cohort(self):
        with world("haccs", settings=small(2)) as now:
            groups = now.population.true_groups()
            clusters = now.federation.memory["clusters"]
            found = np.array([clusters[device] for device in now.population.devices])
            assert now.simulation._points[0].agreement == agreement(found, groups)

    def test_only_so_many_devices_are_tested_and_always_the_same(self):
        ended = run("fedavg", settings=small(4, evaluated_devices=5))
        assert len(ended.device_accuracies) == len(ended.cohort_of) == 5
        assert all(cohort.devices == 5 for point in ended.points for cohort in point.cohorts.values())

    def test_who_has_not_joined_is_not_tested(self):
        ended = run("fedavg", people(newcomers=(Newcomers(0.5, 2),)), small(4))
        assert [point.cohorts["0"].devices for point in ended.points] == [6, 12, 12]

    @pytest.mark.parametrize("name", ["rounds", "participants", "evaluate_every", "evaluated_devices"])
    def test_settings_that_make_no_sense(self, name):
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(InvalidSetting, match=f"{name} must be at least 1, got 0; nothing was started"):
            RunSettings(**wrong)


class TestFtfa:
    def test_each_device_trains_its_cohorts_model_before_it_uses_it(self):
        with world("ftfa", settings=small(2)) as now:
            now.go_on()
            accuracies, homes = now.simulation._judge.everyone(now.federation, now.fleet)
            train = now.population.device_data("train")
            round_number = -1 - now.fleet.round
            for device, found in zip(homes, accuracies, strict=True):
                model = now.federation.model("0")
                tuned = (
                    model
                    + now.trainer.train(model, train, [device], TASK, seed=0, round_number=round_number).updates[0]
                )
                assert found == pytest.approx(accuracy(now.trainer, tuned, now.population, device))

    def test_more_devices_than_a_worker_can_hold_are_tested_too(self, monkeypatch):
        """One worker, and so many devices that it trains them in several pieces."""
        population = people(ALIKE, devices=80)
        with Trainer(SPEC, workers=1, devices_per_chunk=10) as trainer:
            judge = Judge.of(population, trainer, strategy("ftfa"), small(2), 0)
            models, places = SPEC.initial(0)[None], [0] * len(population)
            found = judge._fine_tuned(models, population.devices, places, 0)
            monkeypatch.setattr(judging, "_MOST_COORDINATES", 7 * SPEC.layout.size)
            assert judge._fine_tuned(models, population.devices, places, 0) == pytest.approx(found)

    def test_the_server_knows_nothing_of_it(self):
        with world("ftfa", settings=small(3)) as tuned, world("fedavg", settings=small(3)) as plain:
            tuned.go_on()
            plain.go_on()
            assert torch.equal(tuned.federation.model("0"), plain.federation.model("0"))

    def test_it_helps_devices_that_differ(self):
        population, settings = people(ClassesPerDevice(2, Equal(20))), small(4, task=replace(TASK, epochs=3))
        plain, tuned = (run(name, population, settings).points[-1].spread.mean for name in ("fedavg", "ftfa"))
        assert tuned > plain


class TestStandalone:
    def test_every_device_trains_by_itself_as_often_as_a_server_would_have_asked(self):
        settings = small(6, 4)  # 24 answers of 12 devices
        ended = run("standalone", settings=settings, seed=3)
        population = people()
        train = population.device_data("train")
        with Trainer(SPEC) as trainer:
            for device, found in zip(population.devices, ended.device_accuracies, strict=True):
                model = SPEC.initial(3)
                for turn in (1, 2):
                    model = model + trainer.train(model, train, [device], TASK, seed=3, round_number=turn).updates[0]
                assert found == pytest.approx(accuracy(trainer, model, population, device))

    def test_it_stops_in_time(self):
        assert run("standalone", settings=small(30, 12, max_seconds=0.5)).points[-1].progress.seconds <= 0.5

    def test_nothing_is_sent(self):
        for point in run("standalone").points:
            assert (point.progress.bytes_down, point.progress.bytes_up) == (0, 0)

    def test_it_does_as_many_steps_as_the_federation(self):
        alone, together = (run(name, settings=small(6, 4)).points[-1].progress for name in ("standalone", "fedavg"))
        assert alone.client_steps == together.client_steps
        assert alone.round == together.round == 6

    def test_each_evaluation_is_shown(self):
        shown: list[object] = []
        ended = simulate(people(), strategy("standalone"), SPEC, small(), on_point=shown.append)
        assert tuple(shown) == ended.points
