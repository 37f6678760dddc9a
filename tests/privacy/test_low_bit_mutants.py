"""Faults that hide in how a number ends are found, and would not be without the statistic that looks there.

Each test of a fault has a broken twin of the auditor: the same audit, on the same runs, with one kind of statistic left
out. What the twin misses is what that statistic is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privacy.auditing import audit, learning, statistics
from privacy.budget import NeighbouringRelation
from privacy.mechanisms import ClippedUpdate, FeatureHistogram, LabelHistogram, RandomizedResponse
from tests.privacy import low_bit_mutants as mutants

ADD_REMOVE = NeighbouringRelation.ADD_REMOVE
UPDATE = {"weights": (4,)}


@dataclass(frozen=True)
class Fault:
    """A mutant, the statistic that is there for it, and how that is named."""

    mutant: Any
    kind: str
    told_by: str
    trials: int = 1_500

    def audited(self):
        return audit(self.mutant, trials=self.trials, seed=1)


FAULTS = {
    "noise that skips values": Fault(mutants.SkipsChoices(64, 1), "support", "which value occurs", 12_000),
    "noise that adds up to an even number": Fault(
        mutants.EvenInSum(16, Fraction(1, 4), ADD_REMOVE), "low bits", "the sum of all values", 2_000
    ),
    "noise in whole records": Fault(
        mutants.NoiseInWholeRecords(2, 2, 11, Fraction(1, 4)), "low bits", "residue modulo 11"
    ),
    "an update's low bits go without noise": Fault(
        mutants.RoundsAfterwards(UPDATE, 1, 20), "low bits", "binary digits"
    ),
    "float32 noise on a float64 sum": Fault(
        mutants.FloatSum(Fraction(2**36), 8, np.float64), "low bits", "binary digits"
    ),
    "float32 noise on a float64 sum, sent in floats": Fault(
        mutants.FloatSumInFloats(Fraction(2**36), 8, np.float64), "low bits", "binary digits"
    ),
    "float32 noise on a float32 sum": Fault(
        mutants.FloatSum(Fraction(8), 24), "float support", "float noise cannot give", 6_000
    ),
    "a step that follows from the data": Fault(
        mutants.StepFollowsTheData(4, Fraction(1, 2000), ADD_REMOVE), "granularity", "greatest common divisor"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_audit_finds(fault):
    report = FAULTS[fault].audited()
    assert report.exceeds_claim, str(report)
    assert FAULTS[fault].told_by in report.statistic


@pytest.mark.parametrize("fault", FAULTS)
def test_an_auditor_without_the_statistic_misses(fault, monkeypatch):
    leave_out(monkeypatch, FAULTS[fault].kind)
    report = FAULTS[fault].audited()
    assert not report.exceeds_claim, str(report)


def leave_out(monkeypatch, kind: str) -> None:
    if kind in learning.FAMILIES:
        monkeypatch.delitem(learning.FAMILIES, kind)
    else:
        name = {"float support": "float_supports", "granularity": "granularities"}[kind]
        monkeypatch.setattr(statistics, name, lambda *_: [])


HONEST: dict[str, tuple[Any, int]] = {
    "randomised response": (RandomizedResponse(64, 1), 1_500),
    "label histogram": (LabelHistogram(2, 1), 1_500),
    "label histogram, add or remove, wide noise": (LabelHistogram(4, Fraction(1, 50), ADD_REMOVE), 1_500),
    "feature histogram": (FeatureHistogram(2, 2, 11, Fraction(1, 4)), 1_500),
    "clipped update": (ClippedUpdate(UPDATE, 1, 20), 800),
    "exact sum, coarse grid": (mutants.ExactSum(Fraction(512), 8), 1_500),
    "exact sum, fine grid": (mutants.ExactSum(Fraction(8), 24), 1_500),
}


@pytest.mark.parametrize("name", HONEST)
def test_the_honest_one_beside_them_passes_whatever_the_seed(name):
    mechanism, trials = HONEST[name]
    assert not any(audit(mechanism, trials=trials, seed=seed).exceeds_claim for seed in range(3))
