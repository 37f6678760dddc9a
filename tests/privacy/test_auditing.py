"""Audits of honest mechanisms: close to the claim, never over it, and plain about what they could have seen.

Every audit here is seeded, so a verdict that was right once is right always. The broken twins are in
test_mutants.py.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
import threading
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from privacy.auditing import BUILT_IN, AuditReport, Verdict, audit, audit_update, built_in, load, smoke
from privacy.auditing import runs as audit_runs
from privacy.auditing.worlds import World, worlds_of
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms, MissingExtra
from privacy.mechanisms import ClippedUpdate, LabelHistogram
from privacy.packing import pack
from privacy.release import Answer, Guarantee
from tests.privacy.mutants import ScaledNoise, SmallDpSgd

SEEDS = range(20)
RELATIONS = list(NeighbouringRelation)
ADD_REMOVE = NeighbouringRelation.ADD_REMOVE


def shortfall(report: AuditReport) -> float:
    """What the audit says that it would notice."""
    assert report.detectable_shortfall is not None
    return report.detectable_shortfall


def test_twenty_thousand_runs_come_close_to_the_claim_from_below():
    report = audit(built_in("label_histogram", epsilon=1), trials=20_000, seed=1)
    assert 0.90 <= report.lower_bound <= 1.0
    assert report.verdict is Verdict.NO_EVIDENCE_OF_MORE
    assert shortfall(report) <= 0.2


def test_twenty_thousand_runs_notice_a_fifth_too_little_noise():
    mutant = ScaledNoise(2, 1, factor=Fraction(4, 5))
    report = audit(mutant, worlds_of(mutant)[:1], trials=20_000, seed=1)
    assert report.verdict is Verdict.EXCEEDS_CLAIM
    assert 1.1 < report.lower_bound <= 1.25


@pytest.mark.parametrize(
    "mechanism",
    [
        built_in("label_histogram"),
        built_in("label_histogram", relation="add_remove"),
        built_in("feature_histogram"),
        built_in("feature_histogram", relation="add_remove"),
        built_in("randomized_response"),
        built_in("voted_choice"),
        built_in("voted_choice", relation="add_remove"),
        built_in("bounded_scalar"),
        built_in("clipped_update", noise_multiplier=2),
        built_in("discrete_gaussian", noise_multiplier=2),
        SmallDpSgd(steps=5),
    ],
    ids=lambda mechanism: f"{mechanism.name}, {mechanism.cost.relation}",
)
def test_an_honest_mechanism_passes_whatever_the_seed(mechanism):
    worlds = worlds_of(mechanism)[:1]
    assert not any(audit(mechanism, worlds, trials=80, seed=seed).exceeds_claim for seed in SEEDS)


@pytest.mark.parametrize("name", ["clipped_update", "discrete_gaussian"])
def test_the_bound_on_an_update_comes_close_to_its_claim(name):
    mechanism = built_in(name, noise_multiplier=2)
    report = audit_update(mechanism, worlds_of(mechanism)[:1], trials=2_000, seed=1)
    assert report.claimed_epsilon == pytest.approx(4.887, abs=1e-3)
    assert 3.0 <= report.lower_bound <= report.claimed_epsilon
    assert report.delta == 1e-6


def test_the_same_seed_gives_the_same_audit():
    reports = [audit(built_in("label_histogram"), trials=100, seed="again") for _ in range(2)]
    one, other = (dataclasses.replace(report, seconds=0.0) for report in reports)
    assert one == other


class Witness(LabelHistogram):
    """Notes which noise it was given."""

    noises: ClassVar[set[tuple[bool, int]]] = set()

    def answer(self, data, noise):
        self.noises.add((noise.seeded, id(noise)))
        return super().answer(data, noise)


def test_without_a_seed_the_noise_is_the_operating_systems():
    Witness.noises.clear()
    audit(Witness(2, 1), trials=50)
    ((seeded, _),) = Witness.noises
    assert not seeded


# What a report says


def test_nothing_found_is_never_called_proof():
    sentence = str(audit(built_in("label_histogram"), trials=1_000, seed=0)).lower()
    assert "no evidence of more than ε=1" in sentence
    assert "would notice" in sentence
    assert "cannot prove privacy" in sentence
    assert not any(word in sentence for word in ("verified", "guaranteed", "safe", "is private"))


def test_a_conviction_names_the_neighbours_and_what_told_them_apart():
    report = audit(ScaledNoise(2, 1, factor=Fraction(1, 4)), trials=1_000, seed=0)
    for part in ("claims ε=1", f"at least ε={report.lower_bound:.4g}", report.world, report.statistic):
        assert part in str(report)


def test_a_claim_beyond_what_the_runs_can_show_has_no_power_and_says_so():
    report = audit(built_in("label_histogram", epsilon=12), trials=500, seed=0)
    assert report.detectable_shortfall is None
    assert "cannot say how small a fault" in str(report)


def test_more_runs_notice_smaller_faults():
    few, many = (audit(built_in("label_histogram"), trials=trials, seed=3) for trials in (300, 3_000))
    assert shortfall(many) < shortfall(few)


def test_worlds_that_show_little_lower_the_stated_power():
    weak = [World("replace one by itself", [0, 0, 1], [0, 1, 0])]
    blind = audit(built_in("label_histogram"), weak, trials=2_000, seed=0)
    assert blind.detectable_shortfall is None or blind.detectable_shortfall > 0.5


def test_power_is_what_happens():
    stated = shortfall(audit(LabelHistogram(2, 1, ADD_REMOVE), trials=600, seed=0))
    mutant = ScaledNoise(2, 1, ADD_REMOVE, factor=Fraction(1 - stated).limit_denominator(1000))
    worlds = worlds_of(mutant)[:1]
    caught = sum(audit(mutant, worlds, trials=600, seed=seed).exceeds_claim for seed in range(12))
    assert caught >= 10


# Anyone's mechanism


class Coin:
    """Tells one bit truthfully three times in four, in its own format, with worlds of its own."""

    name = "coin"
    terms: ClassVar[dict] = {}
    guarantee = Guarantee("a bit", "a coin", "Warner 1965")
    cost = PrivacyCost.pure(math.log(3), PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE)

    def check(self, data):
        pass

    def answer(self, data, noise):
        return Answer(pack([data ^ (not noise.bernoulli(3, 4))]))

    def neighbouring_worlds(self):
        return [World("either bit", 0, 1)]


def test_a_mechanism_without_decode_is_audited_by_its_bytes():
    report = audit(Coin(), trials=2_000, seed=0)
    assert 0.9 < report.lower_bound <= math.log(3)


class OddBytes(Coin):
    def answer(self, data, noise):
        return Answer(super().answer(data, noise).payload[:1] * 3)


def test_a_message_of_any_length_is_audited():
    assert 0.9 < audit(OddBytes(), trials=2_000, seed=0).lower_bound <= math.log(3)


class Locked(Coin):
    def __init__(self):
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_audited_and_the_attack_left_out_is_named():
    report = audit(Locked(), trials=500, seed=0)
    assert "cannot be copied" in report.left_out[0]
    assert audit(Coin(), trials=500, seed=0).left_out == ()


class FailsForOne(Coin):
    def answer(self, data, noise):
        if data:
            raise OSError("disk full")
        return super().answer(data, noise)


class FailsInCheck(Coin):
    def check(self, data):
        if data:
            raise InvalidTerms("no ones")


@pytest.mark.parametrize("mechanism", [FailsForOne(), FailsInCheck()])
def test_an_error_is_an_outcome_and_ends_no_audit(mechanism):
    report = audit(mechanism, trials=500, seed=0)
    assert report.exceeds_claim
    assert report.statistic == "error or none"


class AlwaysFails(Coin):
    def answer(self, data, noise):
        raise OSError("disk full")


def test_a_mechanism_that_never_answers_gets_no_verdict():
    with pytest.raises(InvalidTerms, match=r"OSError.*no verdict") as refused:
        audit(AlwaysFails(), trials=100, seed=0)
    assert "disk full" not in str(refused.value)


class Overwrites(Coin):
    """Destroys the data it is given."""

    def answer(self, data, noise):
        bit = data.pop()
        return Answer(pack([bit ^ (not noise.bernoulli(3, 4))]))

    def neighbouring_worlds(self):
        return [World("either bit", [0], [1])]


def test_every_run_gets_data_of_its_own():
    assert audit(Overwrites(), trials=2_000, seed=0).lower_bound > 0.9


class Warns(Coin):
    def answer(self, data, noise):
        np.array([np.nan]).astype(np.int64)
        return super().answer(data, noise)


def test_a_warning_is_not_an_outcome():
    assert audit(Warns(), trials=500, seed=0).lower_bound > 0.5


class Wide(Coin):
    """A release of many numbers, one of which matters."""

    def answer(self, data, noise):
        bit = data ^ (not noise.bernoulli(3, 4))
        return Answer(struct.pack("<q", bit) + bytes(8 * 999))


def test_long_releases_are_read_in_parts(monkeypatch):
    monkeypatch.setattr(audit_runs, "_MOST_NUMBERS", 300_000)
    assert audit(Wide(), trials=1_500, seed=0).lower_bound > 0.8


def test_progress_counts_up_to_all_runs():
    seen = []
    audit(Coin(), trials=1_000, seed=0, progress=lambda made, planned: seen.append((made, planned)))
    made = [now for now, _ in seen]
    assert made == sorted(made)
    assert {planned for _, planned in seen} == {made[-1]}


# Terms that make no sense, and names


@pytest.mark.parametrize(
    "ask",
    [
        lambda: audit(Coin(), trials=0),
        lambda: audit(Coin(), confidence=1.0),
        lambda: audit(Coin(), worlds=[]),
        lambda: audit(Coin(), worlds="no such mechanism"),
        lambda: audit(built_in("clipped_update"), delta=0.0),
        lambda: audit_update(Coin()),
        lambda: smoke(Coin()),
        lambda: built_in("histogram"),
        lambda: built_in("label_histogram", noise_multiplier=1),
        lambda: built_in("label_histogram", relation="adjacent"),
        lambda: load("tests.privacy.mutants"),
        lambda: load("no.such.module:factory"),
        lambda: load("tests.privacy.mutants:no_such_factory"),
        lambda: load("builtins:dict"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(ask):
    with pytest.raises(InvalidTerms, match="nothing was"):
        ask()


def test_without_scipy_an_audit_names_the_extra_before_it_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    for ask in (lambda: audit(AlwaysFails()), lambda: smoke(LabelHistogram(4, 1))):
        with pytest.raises(MissingExtra, match=r"covey\[audit\]"):
            ask()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_mechanism_can_be_named(name, relation):
    mechanism = built_in(name, relation=relation, epsilon=2)
    assert mechanism.name == name
    assert mechanism.cost.relation is relation


def test_a_gaussian_mechanism_can_be_named_by_epsilon_or_by_noise():
    by_epsilon = audit_update(built_in("clipped_update", epsilon=2, delta=1e-5), delta=1e-5, trials=100, seed=0)
    assert 1.9 < by_epsilon.claimed_epsilon <= 2.0
    assert built_in("clipped_update", noise_multiplier=3).terms["noise_multiplier"] == "3"


def test_a_mechanism_can_be_loaded_by_name_from_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "home_made.py").write_text(
        "from privacy.mechanisms import LabelHistogram\n\ndef make():\n    return LabelHistogram(2, 1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert isinstance(load("home_made:make"), LabelHistogram)
    del sys.modules["home_made"]


@pytest.mark.parametrize(
    ("factory", "trials"), [("half_the_noise", 1_500), ("noise_on_full_bins_only", 1_500), ("no_clipping", 500)]
)
def test_the_dishonest_examples_are_found_out(factory, trials):
    report = audit(load(f"examples.dishonest_mechanisms:{factory}"), trials=trials, seed=0)
    assert isinstance(report, AuditReport)
    assert report.exceeds_claim


def test_an_update_of_any_shape_is_audited():
    shapes = {"a": (2, 3), "b": (), "c": (0, 4)}
    report = audit_update(ClippedUpdate(shapes, 0.5, 1), trials=300, seed=0)
    assert 0 < report.lower_bound <= report.claimed_epsilon
