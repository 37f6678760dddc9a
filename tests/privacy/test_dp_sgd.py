"""The mechanism: its cost is known before data, its update lies on the grid, its noise is nobody's to know."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyUnit, SampledGaussian
from privacy.errors import BudgetExhausted, InvalidTerms, ReleaseRefused, UnsupportedModel
from privacy.ledger import Ledger
from privacy.mechanisms.dp_sgd import DpSgd, TrainingData
from privacy.randomness import NoiseSource, SeededSource
from privacy.release import Request, perform
from privacy.training import private_update
from privacy.training.loop import train
from privacy.training.per_sample_clipping import Batch
from privacy.training.step_noise import StepNoise
from tests.privacy.dp_sgd_cases import CASES, data, mlp, shapes_of, slow_clipped_sum


def mechanism(model: nn.Module | None = None, **changes) -> DpSgd:
    terms = {
        "sampling_rate": "1/4",
        "noise_multiplier": 1,
        "clip_norm": 1,
        "steps": 6,
        "expected_batch_size": 3,
        "learning_rate": 0.1,
    }
    return DpSgd(shapes_of(model or mlp()), **{**terms, **changes})


def training(records: Batch | None = None, model: nn.Module | None = None, **settings) -> TrainingData:
    records = data(12, 6, classes=3) if records is None else records
    # Which way is faster may differ from run to run, and with it the last bits.
    settings = {"clipping": "ghost", **settings}
    return TrainingData(model or mlp(), nn.CrossEntropyLoss(), records.inputs, records.targets, **settings)


def seeded(seed: object = 0) -> NoiseSource:
    return NoiseSource(SeededSource(str(seed)))


def test_cost_is_stated_before_any_data_and_protects_records():
    terms = mechanism(noise_multiplier=1.25, relation=NeighbouringRelation.ADD_REMOVE)
    assert terms.cost.unit is PrivacyUnit.RECORD
    assert terms.cost.relation is NeighbouringRelation.ADD_REMOVE
    assert terms.cost.sampled == SampledGaussian(Fraction(1, 4), Fraction(5, 4), 6)


def test_rates_are_exact_and_noise_is_never_less_than_asked_for():
    terms = mechanism(sampling_rate=0.1, noise_multiplier=1.23456789)
    assert terms.cost.sampled == SampledGaussian(Fraction(1, 10), Fraction(1234568, 10**6), 6)


def test_terms_are_public_text_and_numbers_that_tell_mechanisms_apart():
    terms = mechanism()
    assert all(isinstance(value, int | str) for value in terms.terms.values())
    assert set(terms.terms) == {field.name for field in dataclasses.fields(DpSgd)}
    changes = {
        "sampling_rate": "1/5", "noise_multiplier": 2, "clip_norm": 2, "steps": 7, "expected_batch_size": 4,
        "learning_rate": 0.2, "momentum": 0.9, "proximal": 0.1, "relation": "add_remove", "grid_bits": 9,
    }  # fmt: skip
    for name, value in changes.items():
        assert mechanism(None, **{name: value}).terms != terms.terms
    assert mechanism(mlp(hidden=4)).terms != terms.terms


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling_rate": 0}, {"sampling_rate": 1.01}, {"sampling_rate": "nan"}, {"noise_multiplier": 0},
        {"clip_norm": 0}, {"clip_norm": "inf"}, {"clip_norm": 1e13}, {"steps": 0}, {"steps": 2.5},
        {"expected_batch_size": 0}, {"learning_rate": -1}, {"momentum": 1}, {"momentum": -0.1},
        {"proximal": -1}, {"grid_bits": 25}, {"relation": "swap"},
    ],
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"got|is not a valid"):
        mechanism(**wrong)


def test_guarantee_says_that_the_noise_is_exact():
    assert "exactly, in whole steps" in mechanism().guarantee.noise
    assert "Poisson" in mechanism().guarantee.noise


@pytest.mark.parametrize("multiplier", [512, "0.000004"])
def test_noise_at_the_ends_of_what_can_be_drawn_is_drawn(multiplier):
    assert mechanism(noise_multiplier=multiplier, steps=1).answer(training(), seeded()).payload


@pytest.mark.parametrize("multiplier", ["512.000001", 2**16, 2**36, "0.000003"])
def test_noise_that_cannot_be_drawn_exactly_is_refused_before_booking(multiplier):
    with pytest.raises(InvalidTerms, match=r"from 3.8e-06 to 512, got .*; nothing was booked"):
        mechanism(noise_multiplier=multiplier)


def test_the_released_update_lies_on_the_grid_and_has_a_fixed_length():
    terms = mechanism()
    payload = terms.answer(training(), seeded()).payload
    assert len(payload) == terms.size * terms.width_bytes
    assert terms.step == pytest.approx(0.1 * 1 / 3 / 256)
    update = terms.decode(payload)
    assert {name: part.shape for name, part in update.items()} == dict(terms.shapes)
    flat = np.concatenate([part.ravel() for part in update.values()])
    assert np.allclose(flat, terms.decode_steps(payload) * terms.step)


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.9, "proximal": 0.5}, {"expected_batch_size": 1e-6}])
def test_the_packed_update_is_what_was_trained_up_to_the_grid(changes, monkeypatch):
    kept: list[torch.Tensor] = []

    def keeping(*arguments):
        kept.append(train(*arguments))
        return kept[-1]

    monkeypatch.setattr(private_update, "train", keeping)
    terms = mechanism(**changes)
    payload = terms.answer(training(), seeded()).payload
    assert np.abs(terms.decode_steps(payload) - kept[0].double().numpy() / terms.step).max() <= 0.5 + 1e-6


def test_length_does_not_depend_on_the_records():
    terms = mechanism()
    none = Batch(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    lengths = {len(terms.answer(training(records), seeded()).payload) for records in (none, data(40, 6, classes=3))}
    assert lengths == {terms.size * terms.width_bytes}


@pytest.mark.parametrize("case", CASES)
def test_models_of_all_kinds_are_checked_trained_and_released(case):
    model, records = CASES[case]()
    terms = mechanism(model)
    before = [parameter.clone() for parameter in model.parameters()]
    terms.check(training(records, model))
    update = terms.decode(terms.answer(training(records, model), seeded()).payload)
    assert all(np.abs(part).max() > 0 for part in update.values())
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))


def test_the_noise_of_a_release_is_that_of_its_steps():
    # Without records nothing but noise moves the weights: learning_rate·σ·C·√steps/expected_batch_size.
    model = mlp(100, 100)
    terms = mechanism(model, noise_multiplier=2, clip_norm="1/2", steps=9)
    none = Batch(torch.zeros(0, 100), torch.zeros(0, dtype=torch.int64))
    steps = terms.decode_steps(terms.answer(training(none, model), seeded()).payload)
    assert np.std(steps * terms.step) == pytest.approx(0.1 * 2 * 0.5 * 3 / 3, rel=0.02)


def test_a_poisoned_record_has_no_influence_and_leaves_the_model_finite():
    records = data(12, 6, classes=3)
    poisoned = Batch(records.inputs.clone(), records.targets.clone())
    poisoned.inputs[3] = np.nan
    poisoned.targets[7] = 99
    zeroed = Batch(records.inputs.clone(), poisoned.targets)
    zeroed.targets[3] = 99
    terms = mechanism(sampling_rate=1)
    first, second = (terms.answer(training(each), seeded()).payload for each in (poisoned, zeroed))
    assert np.abs(terms.decode_steps(first) - terms.decode_steps(second)).max() <= 1
    assert all(np.isfinite(part).all() for part in terms.decode(first).values())


def separation(seed: object, runs: int = 150) -> float:
    """How many standard deviations lie between releases with and without a record that pulls as hard as it can."""
    model, canary = mlp(), data(1, 6, classes=3)
    canary.inputs[0] *= 100
    canary.targets[0] = model(canary.inputs).argmin()
    none = Batch(canary.inputs[:0], canary.targets[:0])
    direction = slow_clipped_sum(model, canary, 1.0).numpy()
    terms = mechanism(sampling_rate=1, steps=1, expected_batch_size=1, learning_rate=1)
    seen = [
        [
            -direction @ terms.decode_steps(terms.answer(training(world), seeded((seed, run, len(world)))).payload)
            for run in range(runs)
        ]
        for world in (none, canary)
    ]
    without, with_canary = np.array(seen) * terms.step
    return float((with_canary.mean() - without.mean()) / without.std())


@pytest.mark.statistical
def test_one_record_shows_no_more_than_was_paid_for():
    # With noise of one clip norm the two worlds are one standard deviation apart; 0.46 is four standard errors.
    assert 0.54 < separation("honest") < 1.46


@pytest.mark.statistical
def test_half_the_noise_shows(monkeypatch):
    monkeypatch.setattr(private_update, "StepNoise", lambda noise, multiplier: StepNoise(noise, multiplier / 2))
    assert separation("half") > 1.46


def test_a_training_that_runs_off_is_released_like_any_other():
    terms = mechanism(learning_rate=1e12, clip_norm=1e12, expected_batch_size=1e-12)
    payload = terms.answer(training(), seeded()).payload
    assert len(payload) == terms.size * terms.width_bytes


def test_the_same_seed_gives_the_same_bytes_and_marks_them():
    first, second, other = (mechanism().answer(training(), seeded(seed)) for seed in (1, 1, 2))
    assert first == second
    assert first.payload != other.payload
    assert first.seeded


def test_seeding_torch_and_numpy_does_not_fix_a_release():
    def after_seeding():
        torch.manual_seed(0)
        np.random.seed(0)
        return mechanism().answer(training(), NoiseSource())

    first, second = after_seeding(), after_seeding()
    assert first.payload != second.payload
    assert not first.seeded


def test_the_callers_generator_and_settings_stay_as_they_were():
    terms, work = mechanism(), training()
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        terms.check(work)
        within = terms.answer(work, seeded())
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert within == terms.answer(work, seeded())
    assert torch.equal(torch.get_rng_state(), state)


def test_both_ways_of_clipping_train_the_same():
    ghost, hooks = (
        mechanism().decode_steps(mechanism().answer(training(clipping=way), seeded()).payload)
        for way in ("ghost", "hooks")
    )
    assert np.abs(ghost - hooks).max() <= 1


def test_the_faster_way_is_found_out_by_itself():
    assert len(mechanism().answer(training(clipping="fastest"), seeded()).payload)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: training(model=mlp(hidden=4)), InvalidTerms, "differ in name or shape"),
        (lambda: training(Batch(torch.zeros(3, 6), torch.zeros(2))), InvalidTerms, "one row for each record"),
        (lambda: training(clipping="fast"), InvalidTerms, "'fastest', 'ghost' or 'hooks'"),
        (lambda: training(micro_batch_size=0), InvalidTerms, "micro_batch_size"),
        (lambda: training(data(12, 7, classes=3)), UnsupportedModel, "made-up records"),
    ],
)
def test_what_differs_from_the_terms_is_refused_before_booking(wrong, error, message):
    with pytest.raises(error, match=message) as refusal:
        mechanism().check(wrong())
    assert str(refusal.value).endswith("nothing was booked")


def test_checking_looks_at_no_record():
    records = data(12, 6, classes=3)
    records.inputs[:] = np.nan
    records.targets[:] = 10**9
    mechanism().check(training(records))


def test_the_module_loads_neither_torch_nor_numpy_and_names_the_extra():
    script = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from privacy.errors import MissingExtra
from privacy.mechanisms.dp_sgd import DpSgd, TrainingData
assert not {"numpy", "opacus"} & set(sys.modules)
terms = DpSgd({"w": (2,)}, "1/4", 1, 1, 1, 1, 1)
try:
    terms.check(TrainingData(None, None, None, None))
except MissingExtra as error:
    print(error)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'covey[torch]'" in finished.stdout


RECORD_BUDGET = PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD)
AFFORDABLE = mechanism(noise_multiplier=4)
REQUEST = Request("hospital", "training", "round 1")


@pytest.fixture
def record_ledger(tmp_path, ledger_keys):
    with Ledger.open(tmp_path / "records", ledger_keys, RECORD_BUDGET) as ledger:
        yield ledger


def test_a_release_is_booked_once_and_a_retry_is_the_same_bytes(record_ledger):
    first = perform(record_ledger, AFFORDABLE, training(), REQUEST, NoiseSource())
    spent = record_ledger.status().spent
    again = perform(record_ledger, AFFORDABLE, training(), REQUEST, NoiseSource())
    assert first.for_sending() == again.for_sending()
    assert record_ledger.status().spent == spent
    assert spent.renyi_nano > 0


def test_a_seeded_training_stays_on_the_device(record_ledger):
    release = perform(record_ledger, AFFORDABLE, training(), REQUEST, seeded())
    with pytest.raises(ReleaseRefused):
        release.for_sending()


def test_an_unaffordable_training_never_starts(record_ledger, monkeypatch):
    monkeypatch.delattr(private_update, "train")
    with pytest.raises(BudgetExhausted):
        perform(record_ledger, mechanism(noise_multiplier="0.1", steps=1000), training(), REQUEST, NoiseSource())


def test_an_unsupported_model_costs_nothing(record_ledger):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UnsupportedModel):
        perform(record_ledger, mechanism(model), training(model=model), REQUEST, NoiseSource())
    assert record_ledger.status().spent.renyi_nano == 0
