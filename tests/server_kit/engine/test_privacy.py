"""Privacy in a run: noise as planned, nobody beyond its budget, and an ε that the accountant would name too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from device_sdk.wire.messages import ChoiceBy
from privacy.accounting import epsilon_spent
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from server_kit.errors import InvalidSetting
from server_kit.interfaces import Order, SummaryRequest
from server_kit.local_task import LocalTask
from server_kit.presets import strategy
from server_kit.round import Ticket
from server_kit.simulation.changes import Newcomers, Shift
from server_kit.simulation.fleet import SimulatedFleet
from server_kit.simulation.partition import Equal, GivenSizes, Iid
from server_kit.simulation.privacy_terms import PrivacyTerms, SpendingPlan, costliest
from server_kit.simulation.private_updates import noised_as_a_whole
from server_kit.simulation.telling import Telling
from server_kit.simulation.training import Trainer
from tests.server_kit.engine.test_invariants import TOGETHER
from tests.server_kit.engine.worlds import SPEC, TASK, people, run, small, world

RECORD = PrivacyTerms("record", epsilon=8.0, participations=2, choice_epsilon=0.2)
DEVICE = PrivacyTerms("device", epsilon=8.0, participations=2, choice_epsilon=0.2)
HISTOGRAMS = {"haccs", "haccs_features", "covey"}  # hide records, not devices


def plan(terms: PrivacyTerms, records: tuple[int, ...] = (20,), name: str = "fedavg") -> SpendingPlan:
    return terms.plan(strategy(name), TASK, records)


def terms_for(name: str) -> list[PrivacyTerms]:
    return [RECORD] if name in HISTOGRAMS else [RECORD, DEVICE]


class TestNoise:
    def test_an_update_is_clipped_and_gets_noise_of_the_planned_deviation(self):
        spending = plan(PrivacyTerms("device", clip_norm=3.0))
        delta = torch.full((40_000,), 1.0)
        noised = noised_as_a_whole(delta, spending, "a device")
        deviation = spending.noise_multiplier * 3.0
        assert spending.deviation == deviation
        assert float((noised - 3.0 / 200).std()) == pytest.approx(deviation, rel=0.03)
        assert abs(float((noised - 3.0 / 200).mean())) < 5 * deviation / 200

    def test_an_update_within_the_norm_is_left_as_it_is(self):
        spending = plan(PrivacyTerms("device", clip_norm=3.0))
        short, none = (noised_as_a_whole(value * torch.ones(100), spending, "x") for value in (0.1, 0.0))
        torch.testing.assert_close(short - none, torch.full((100,), 0.1), rtol=1e-4, atol=1e-4)

    def test_one_that_is_not_finite_counts_as_nothing(self):
        spending = plan(DEVICE)
        zeros = noised_as_a_whole(torch.zeros(9), spending, "x")
        assert torch.equal(noised_as_a_whole(torch.full((9,), float("nan")), spending, "x"), zeros)

    def test_devices_and_participations_draw_their_own(self):
        with Trainer(SPEC) as trainer:
            fleet = SimulatedFleet(people(), trainer, privacy=plan(DEVICE))
            drawn = []
            for device in ("1", "1", "2"):
                fleet.dispatch([Order(device, "0", 0, SPEC.initial(0), TASK)], 0.0)
                assert fleet.arrives(device, 0.0)
                (update,) = fleet.read([Ticket(device, 0, 0)])
                drawn.append(update.delta.numpy())
                assert (update.weight, update.loss) == (1.0, None)
                fleet.forget([(device, 0.0)])
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert abs(np.corrcoef(drawn[one], drawn[other])[0, 1]) < 0.2
        assert np.std(drawn[0]) == pytest.approx(fleet.privacy.deviation, rel=0.1)  # type: ignore[union-attr]

    def test_at_record_level_a_device_trains_by_dp_sgd(self):
        task = plan(RECORD).private(LocalTask(0.1, halves=True))
        assert (task.clip_norm, task.sampling, task.halves) == (1.0, "poisson", False)
        assert task.noise_multiplier == plan(RECORD).noise_multiplier

    def test_losses_are_not_told_and_samples_do_not_weigh(self):
        with world("qfedavg", settings=small(2, privacy=RECORD)) as now:
            now.go_on()
            assert all(view.loss is None for view in now.state.views.values())


class TestBudget:
    @pytest.mark.parametrize("name", TOGETHER)
    def test_nobody_takes_part_more_often_than_its_budget_allows(self, name):
        population = people(newcomers=(Newcomers(0.25, 1),), shifts=(Shift(0.5, 2, label_shift=1),))
        overrides = {"flhc": {"formation": {"at_round": 2}}, "fedgroup": {"formation": {"sample": 5}}}.get(name)
        with world(name, population, small(99, privacy=RECORD), overrides=overrides) as now:
            now.go_on(300)
            assert max(now.fleet.participations.values()) == 2
            assert not now.state.out

    @pytest.mark.parametrize("name", ["fedavg", "haccs", "fedgroup", "casa", "ifca", "covey"])
    def test_the_epsilon_that_is_shown_stays_within_the_budget(self, name):
        for terms in terms_for(name):
            ended = run(name, people(shifts=(Shift(0.5, 2, label_shift=1),)), small(99, privacy=terms))
            assert 0 < (ended.points[-1].epsilon or 0) <= 8.0

    def test_a_device_describes_itself_once(self):
        with Trainer(SPEC) as trainer:
            fleet = SimulatedFleet(people(), trainer, privacy=plan(RECORD, name="haccs"))
            request = SummaryRequest("label_histogram", 0.1)
            assert set(fleet.summaries(request, ["1", "2"])) == {"1", "2"}
            assert set(fleet.summaries(request, ["2", "3"])) == {"3"}
            assert fleet.summarised == {"1": 1, "2": 1, "3": 1}

    def test_a_device_chooses_as_often_as_was_planned(self):
        with Trainer(SPEC) as trainer:
            fleet = SimulatedFleet(people(), trainer, privacy=plan(RECORD, name="ifca"))
            models = torch.stack([SPEC.initial(0), SPEC.initial(1)])
            assert [len(fleet.choices(["1"], models)) for _ in range(4)] == [1, 1, 0, 0]

    def test_by_votes_many_records_tell_what_they_would_choose_and_book_as_much(self):
        terms = PrivacyTerms("record", participations=2, choice_epsilon=0.2)
        models = torch.stack([SPEC.initial(number) for number in range(4)])
        right = {}
        for by in ("response", "votes"):
            chosen = replace(terms, choice_by=by)
            with Trainer(SPEC) as trainer:
                fleet = SimulatedFleet(people(Iid(Equal(60)), 40), trainer, privacy=plan(chosen, name="ifca"))
                devices = list(fleet.population.devices)
                told = fleet.choices(devices, models)
                majority = [Counter(Telling(fleet).votes(device, models)).most_common(1)[0][0] for device in devices]
                right[by] = sum(told[device] == best for device, best in zip(devices, majority, strict=True))
                assert fleet.chosen == dict.fromkeys(devices, 1)
                assert fleet.candour(4) == (1.0 if by == "votes" else pytest.approx(0.289, abs=0.001))
        assert right["votes"] > 1.5 * right["response"]
        first, second = (plan(replace(terms, choice_by=by), name="ifca") for by in ("response", "votes"))
        assert first.noise_multiplier == second.noise_multiplier
        assert first.spent(1, 0, 2) == second.spent(1, 0, 2)

    def test_records_vote_unless_the_whole_device_is_hidden(self):
        assert PrivacyTerms("record").chosen_by is ChoiceBy.VOTES
        assert PrivacyTerms("device").chosen_by is ChoiceBy.RESPONSE
        assert PrivacyTerms("record", choice_by="response").chosen_by is ChoiceBy.RESPONSE

    def test_votes_hide_no_device(self):
        with pytest.raises(InvalidSetting, match="votes hide records and not devices"):
            PrivacyTerms("device", choice_by="votes")

    def test_a_run_ends_when_all_have_spent_theirs(self):
        ended = run("fedavg", people(devices=8), small(99, 4, evaluate_every=1, privacy=RECORD))
        assert ended.points[-1].progress.round == 4  # 8 devices, twice each, 4 at a time

    def test_at_the_start_nothing_is_spent(self):
        assert run("fedavg", settings=small(1, privacy=RECORD)).points[0].epsilon == 0.0

    def test_without_terms_there_is_no_epsilon(self):
        assert run("fedavg", settings=small(1)).points[-1].epsilon is None

    @pytest.mark.parametrize("records", [(10, 11), (9, 10, 11, 20, 21, 400), (5,), (11,), (0, 3)])
    def test_devices_with_any_number_of_records_keep_their_budget(self, records):
        terms = PrivacyTerms("record", epsilon=8.0, participations=20)
        planned = plan(terms, records)
        for count in records:
            rate = Fraction(min(TASK.batch_size, max(1, count)), max(1, count))
            steps = max(1, TASK.steps_for(count))
            own = SpendingPlan(terms, planned.noise_multiplier, Fraction(0), Fraction(0), rate, steps)
            assert own.spent(20, 0, 0) <= 8.0

    def test_it_is_not_the_fewest_records_that_cost_most(self):
        assert costliest(TASK, [10, 11, 400])[0] == (Fraction(10, 11), 2)
        terms = PrivacyTerms("record", epsilon=8.0, participations=20)
        short = plan(terms, (10,))
        eleven = SpendingPlan(terms, short.noise_multiplier, Fraction(0), Fraction(0), Fraction(10, 11), 2)
        assert eleven.spent(20, 0, 0) > 8.0  # what planning for ten alone would have cost a device with eleven


class TestAccounting:
    def cost(self, spending: SpendingPlan, **terms: Any) -> PrivacyCost:
        return PrivacyCost(PrivacyUnit(spending.terms.unit), NeighbouringRelation(spending.terms.relation), **terms)

    def test_record_level_is_a_sampled_gaussian_for_each_step(self):
        spending = plan(RECORD)
        noise = Fraction(spending.noise_multiplier).limit_denominator(10**6)
        sampled = SampledGaussian(Fraction(1, 2), noise, 3 * 2)  # 20 records in batches of 10: two steps a round
        assert spending.spent(3, 0, 0) == epsilon_spent([self.cost(spending, sampled=sampled)], 1e-6)

    def test_device_level_is_a_gaussian_for_each_round(self):
        spending = plan(DEVICE)
        noise = Fraction(spending.noise_multiplier).limit_denominator(10**6)
        once = PrivacyCost.gaussian(2 / noise, PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE)
        assert spending.spent(2, 0, 0) == epsilon_spent([once, once], 1e-6)

    def test_histograms_and_choices_are_paid_for(self):
        spending = plan(RECORD, name="haccs")
        alone, told = spending.spent(2, 0, 0), spending.spent(2, 1, 0)
        assert alone < told <= alone + 0.2 + 1e-9
        choosing = plan(RECORD, name="ifca")
        assert choosing.spent(2, 0, 2) > choosing.spent(2, 0, 0)
        assert choosing.spent(0, 0, 0) == 0.0

    def test_the_epsilon_of_a_run_is_that_of_its_busiest_device(self):
        with world("ifca", settings=small(99, 3, privacy=RECORD)) as now:
            for _ in now.events(12):
                busiest = max(
                    now.fleet.privacy.spent(count, 0, now.fleet.chosen.get(device, 0))
                    for device, count in now.fleet.participations.items()
                )
                assert now.fleet.epsilon() == busiest

    def test_evaluating_costs_nothing(self):
        often, seldom = (run("ifca", settings=small(99, evaluate_every=every, privacy=RECORD)) for every in (1, 99))
        assert often.points[-1].progress.round > 1
        with world("ifca", settings=small(99, privacy=RECORD)) as now:
            now.go_on()
            chosen, down = dict(now.fleet.chosen), now.fleet.tally.bytes_down
            now.simulation._evaluate()
            assert (now.fleet.chosen, now.fleet.tally.bytes_down) == (chosen, down)
            assert chosen == now.fleet.participations
        assert often.device_accuracies == seldom.device_accuracies


class TestChoices:
    def test_choices_are_randomised_as_often_as_their_epsilon_says(self):
        terms = PrivacyTerms("record", participations=1, choice_epsilon=1.0, choice_by="response")
        with Trainer(SPEC) as trainer:
            population = people(Iid(Equal(2)), 800)
            fleet = SimulatedFleet(population, trainer, privacy=plan(terms, name="ifca"))
            models = torch.stack([SPEC.initial(number) for number in range(3)])
            told = fleet.choices(population.devices, models)
            truth = fleet.best_models(population.devices, models)
        kept = np.mean([told[device] == best for device, best in zip(population.devices, truth, strict=True)])
        assert kept == pytest.approx(np.e / (np.e + 2), abs=0.07)
        assert fleet.candour(3) == pytest.approx(np.e / (np.e + 2))

    def test_a_device_that_uses_a_model_itself_is_not_fooled_by_its_own_noise(self):
        with world("ifca", settings=small(privacy=RECORD)) as now:
            models = torch.stack([now.federation.model(leaf) for leaf in now.federation.leaves])
            best = now.fleet.best_models(now.population.devices, models)
            with now.fleet.in_private():
                homes = now.federation.homes(now.population.devices)
            assert homes == [f"0.{choice}" for choice in best]


class TestRefusals:
    def test_choices_need_a_price(self):
        with pytest.raises(InvalidSetting, match="choice_epsilon above 0; nothing was started"):
            run("ifca", settings=small(privacy=PrivacyTerms()))

    @pytest.mark.parametrize("name", sorted(HISTOGRAMS))
    def test_histograms_do_not_hide_devices(self, name):
        with pytest.raises(InvalidSetting, match="hide records and not devices"):
            run(name, settings=small(privacy=DEVICE))

    def test_terms_that_nothing_can_keep(self):
        tight = PrivacyTerms("record", epsilon=0.05, participations=5)
        with pytest.raises(InvalidSetting, match="cannot be kept"):
            run("haccs", settings=small(privacy=tight))

    def test_who_trains_alone_releases_nothing(self):
        with pytest.raises(InvalidSetting, match="releases nothing"):
            run("standalone", settings=small(privacy=RECORD))

    @pytest.mark.parametrize("wrong", [{"participations": 0}, {"clip_norm": 0.0}, {"choice_epsilon": -1.0}])
    def test_terms_that_make_no_sense(self, wrong):
        with pytest.raises(InvalidSetting, match="nothing was started"):
            PrivacyTerms(**wrong)


def test_private_runs_differ_from_plain_ones_and_repeat():
    models = []
    for terms in (RECORD, RECORD, DEVICE, None):
        with world("fedavg", settings=small(2, privacy=terms)) as now:
            now.go_on()
            models.append(now.federation.model("0"))
    assert torch.equal(models[0], models[1])
    assert not any(torch.equal(models[0], other) for other in models[2:])


def test_devices_of_many_sizes_share_one_noise():
    with world("fedavg", people(Iid(GivenSizes((13, 14, 60))), 3), small(2, 3, privacy=RECORD)) as now:
        records = [now.population.num_samples(device) for device in now.population.devices]
        assert now.fleet.privacy.noise_multiplier == plan(RECORD, tuple(records)).noise_multiplier
