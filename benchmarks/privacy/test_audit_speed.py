"""How long a privacy officer waits for an audit, and a device for a smoke test."""

from __future__ import annotations

from fractions import Fraction

import pytest

from privacy.auditing import Verdict, audit, audit_update, built_in, smoke
from privacy.budget import NeighbouringRelation
from privacy.mechanisms import LabelHistogram
from tests.privacy.mutants import ScaledNoise


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_audit_of_a_label_histogram(benchmark, relation):
    """20 000 runs for each neighbour: we want a bound above 0.9 for a true ε of 1 within 10 s on one core."""
    mechanism = built_in("label_histogram", relation=relation)
    report = benchmark.pedantic(audit, args=(mechanism,), kwargs={"seed": 1}, rounds=1)
    assert 0.90 <= report.lower_bound <= 1.0


def test_audit_that_finds_a_fifth_too_little_noise(benchmark):
    """A fault is found in the time in which none is."""
    broken = ScaledNoise(2, 1, factor=Fraction(4, 5))
    report = benchmark.pedantic(audit, args=(broken,), kwargs={"seed": 1}, rounds=1)
    assert report.verdict is Verdict.EXCEEDS_CLAIM


def test_audit_of_an_update(benchmark):
    """10 000 runs for each neighbour, through clipping, the grid and AES: we want it within 20 s on one core."""
    mechanism = built_in("clipped_update", noise_multiplier=2)
    report = benchmark.pedantic(audit_update, args=(mechanism,), kwargs={"seed": 1}, rounds=1)
    assert 4.0 <= report.lower_bound <= report.claimed_epsilon


def test_smoke_test_of_one_release(benchmark):
    """One release of 992 bins with as many canaries: we want it within 30 ms."""
    mechanism = LabelHistogram(992, 1, NeighbouringRelation.ADD_REMOVE)
    report = benchmark(smoke, mechanism, seed=0)
    assert 0.5 <= report.lower_bound <= 1.0
