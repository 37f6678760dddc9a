"""What dishonest devices of a simulation send, and that honest ones are left as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from server_kit.aggregation import Guarded
from server_kit.errors import InvalidSetting
from server_kit.honest_lengths import Descent, Noised, record_level
from server_kit.interfaces import Update
from server_kit.local_task import LocalTask
from server_kit.presets import strategy
from server_kit.simulation.attacks import Backdoor, Replacement, SignFlip, kept_within
from server_kit.simulation.changes import LabelFlip
from server_kit.simulation.datasets import Digits
from server_kit.simulation.experiments.experiment import Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.partition import Equal, Iid
from server_kit.simulation.population import Population
from server_kit.simulation.privacy_terms import PrivacyTerms
from server_kit.simulation.training import LogisticRegression
from server_kit.simulation.virtual_time import RunSettings, simulate
from tests.architecture.repository import ROOT

SPEC = LogisticRegression(64, 10)
PEOPLE = Population(Digits().load(), Iid(Equal(40)), 20)
SETTINGS = RunSettings(rounds=10, participants=10, evaluate_every=5, task=LocalTask(0.5), device="cpu")


def run(population, aggregator=None, settings=SETTINGS):
    chosen = strategy("fedavg")
    return simulate(
        population, chosen if aggregator is None else replace(chosen, aggregator=aggregator), SPEC, settings
    )


def accuracy(ended) -> float:
    return ended.points[-1].spread.mean


@pytest.mark.parametrize("privacy", [None, PrivacyTerms(participations=10)], ids=["none", "record"])
def test_an_attack_by_nobody_changes_nothing(privacy):
    """Not even a bit: guards are compared with runs that were made before there were attacks."""
    settings = replace(SETTINGS, rounds=3, privacy=privacy)
    plain, attacked = (run(each, settings=settings) for each in (PEOPLE, replace(PEOPLE, attack=SignFlip(0.0))))
    assert plain == attacked


def test_a_share_of_the_devices_lies_and_always_the_same():
    lying = replace(PEOPLE, attack=SignFlip(0.2))
    assert len(lying.liars) == 4
    assert lying.liars == replace(PEOPLE, attack=Backdoor(0.2)).liars


def test_a_replaced_model_says_one_label_and_a_guard_keeps_it_from_that():
    lying = replace(PEOPLE, attack=Replacement(0.1, label=3, boost=10))
    assert accuracy(run(lying)) < 0.3
    assert accuracy(run(lying, Guarded(strategy("fedavg").aggregator))) > 0.7


def test_a_flipped_sign_undoes_learning():
    assert accuracy(run(replace(PEOPLE, attack=SignFlip(0.2, boost=10)))) < accuracy(run(PEOPLE)) - 0.3


@pytest.mark.parametrize(
    "attack",
    [Backdoor(0.1, target=2, boost=10), Backdoor(0.1, target=1, trigger="none", source=7, boost=100)],
    ids=["patch", "meaning"],
)
def test_a_backdoor_opens_without_a_guard_and_is_seen(attack):
    lying = replace(PEOPLE, attack=attack)
    ended = run(lying)
    assert ended.points[-1].backdoor > 0.5
    assert run(lying, Guarded(strategy("fedavg").aggregator)).points[-1].backdoor < 0.4
    assert run(PEOPLE).points[-1].backdoor is None


def test_flipped_labels_and_other_lies_go_together():
    both = replace(PEOPLE, label_flip=LabelFlip(0.5), attack=SignFlip(0.1, boost=10))
    assert accuracy(run(both)) < accuracy(run(replace(PEOPLE, label_flip=LabelFlip(0.5))))


def test_a_liar_neither_clips_nor_adds_noise():
    private = replace(SETTINGS, rounds=2, privacy=PrivacyTerms(participations=10))
    everyone = replace(PEOPLE, attack=SignFlip(1.0))
    assert (
        run(everyone, settings=private).points[-1].spread
        == run(everyone, settings=replace(SETTINGS, rounds=2)).points[-1].spread
    )


def test_whoever_hides_stays_inside_the_spread_of_the_others():
    generator = torch.Generator().manual_seed(3)
    honest = [Update(f"h{number}", torch.randn(30, generator=generator)) for number in range(8)]
    lying = [*honest, Update("liar", torch.full((30,), 1e6))]
    found = list(kept_within(lambda: iter(lying), {"liar"}, 1.5))
    values = torch.stack([update.delta for update in honest]).double()
    edge = values.mean(dim=0) + 1.5 * values.std(dim=0, correction=0)
    torch.testing.assert_close(found[-1].delta.double(), edge, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(before.delta, after.delta) for before, after in zip(honest, found[:-1], strict=True))


def test_a_trigger_is_a_painted_corner():
    images = np.zeros((2, 8, 8), dtype=np.uint8)
    marked = Backdoor(0.1).stamped(images, 16)
    assert marked[:, :3, :3].min() == 16
    assert marked.sum() == 2 * 9 * 16
    assert images.sum() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SignFlip(1.5),
        lambda: SignFlip(0.1, boost=0),
        lambda: Replacement(0.1, within=-1.0),
        lambda: Backdoor(0.1, trigger="none"),
        lambda: Backdoor(0.1, source=3),
    ],
)
def test_a_lie_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidSetting, match="no population was made"):
        wrong()


def test_a_case_is_a_contender_whose_terms_name_its_attack():
    experiment = ExperimentFile.open(ROOT / "benchmarks/papers/attacks_record.toml").read()
    quiet, loud = (Unit(f"no guard: {case}", 0) for case in ("no attack", "sign flip, 10 %"))
    assert "attack" not in experiment.terms(quiet)["compare"]
    assert experiment.terms(loud)["compare"]["attack"] == ["SignFlip", {"share": 0.1, "boost": 10.0, "within": None}]


def test_the_bound_of_the_table_is_that_of_its_terms():
    experiment = ExperimentFile.open(ROOT / "benchmarks/papers/attacks_record.toml").read()
    task, terms = experiment.settings.task, experiment.settings.privacy
    assert terms is not None
    population = experiment.population(0)
    records = {population.num_samples(device) for device in population.devices}
    plan = terms.plan(strategy("fedavg"), task, records)
    length = record_level(
        Noised(650, terms.clip_norm, plan.noise_multiplier, 0.0),
        Descent(plan.steps, task.batch_size, float(plan.sampling_rate), task.learning_rate),
    )
    bounds = {each.overrides["aggregator"]["bound"] for each in experiment.contenders if each.overrides}
    assert bounds == {round(length, 2)}
