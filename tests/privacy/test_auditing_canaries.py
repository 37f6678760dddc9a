"""One release, many canaries: quick, seldom wrong, and sharp enough for gross faults."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from privacy.auditing import smoke
from privacy.auditing.canaries import _Histogram
from privacy.budget import NeighbouringRelation
from privacy.errors import InvalidTerms
from privacy.mechanisms import ClippedUpdate, FeatureHistogram, LabelHistogram
from tests.privacy.mutants import ForgetsFeatures, NoiseOnFullBinsOnly, RaisesOnUnknownLabels, ScaledNoise

RELATIONS = list(NeighbouringRelation)
ADD_REMOVE = NeighbouringRelation.ADD_REMOVE
BINS = 992


def flagged(mechanism, seeds) -> float:
    """The share of smoke tests that convict."""
    return sum(smoke(mechanism, seed=seed).exceeds_claim for seed in seeds) / len(seeds)


@pytest.mark.parametrize("relation", RELATIONS)
def test_honest_histograms_are_convicted_at_most_once_in_twenty(relation):
    assert flagged(LabelHistogram(BINS, 1, relation), range(100)) <= 0.05


@pytest.mark.parametrize("relation", RELATIONS)
def test_half_the_noise_is_noticed_in_one_release(relation):
    assert flagged(ScaledNoise(BINS, 1, relation, factor=Fraction(1, 2)), range(20)) == 1


def test_a_fifth_too_little_noise_is_noticed_more_often_than_not():
    assert flagged(ScaledNoise(BINS, 1, ADD_REMOVE, factor=Fraction(4, 5)), range(20)) >= 0.6


def test_noise_on_full_bins_only_is_noticed_in_one_release():
    assert flagged(NoiseOnFullBinsOnly(BINS, 1, ADD_REMOVE), range(10)) == 1


@pytest.mark.parametrize("relation", RELATIONS)
def test_forgotten_features_are_noticed_in_one_release(relation):
    terms = {"num_labels": 31, "num_bins": 16, "features_per_record": 8, "epsilon": 1, "relation": relation}
    assert flagged(ForgetsFeatures(**terms), range(5)) == 1
    assert flagged(FeatureHistogram(**terms), range(20)) <= 0.1


def test_the_report_says_how_many_canaries_there_were():
    report = smoke(LabelHistogram(BINS, 1, ADD_REMOVE), seed=0)
    assert report.world == f"{BINS} canaries in one release"
    assert report.trials == 1
    assert 0.5 < report.lower_bound <= 1
    assert report.detectable_shortfall is not None
    assert 0.1 < report.detectable_shortfall < 0.5


def test_a_single_bin_shows_nothing_and_says_so():
    report = smoke(LabelHistogram(1, 1, ADD_REMOVE), seed=0)
    assert report.lower_bound == 0
    assert report.detectable_shortfall is None


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_canary_is_one_record_that_its_coin_adds_or_moves(relation):
    histogram = _Histogram(cells=9, weight=1, relation=relation)
    tails, heads = np.zeros(histogram.canaries, dtype=np.int64), np.ones(histogram.canaries, dtype=np.int64)
    if relation is NeighbouringRelation.ADD_REMOVE:
        assert (histogram.occupied(tails), histogram.occupied(heads)) == ([], list(range(9)))
    else:
        assert (histogram.occupied(tails), histogram.occupied(heads)) == ([0, 2, 4, 6], [1, 3, 5, 7])
    for coins in (tails, heads):
        counts = np.bincount(histogram.occupied(coins), minlength=9).astype(float)
        assert ((histogram.leaning(counts) > 0) == coins).all()


@pytest.mark.parametrize("mechanism", [ClippedUpdate({"w": (4,)}, 1, 1), LabelHistogram(1, 1)])
def test_what_has_no_room_for_canaries_is_refused(mechanism):
    with pytest.raises(InvalidTerms, match="use `audit`"):
        smoke(mechanism)


def test_an_error_gives_no_verdict():
    class Fails(RaisesOnUnknownLabels):
        def answer(self, data, noise):
            raise OSError("disk full")

    with pytest.raises(InvalidTerms, match="no verdict"):
        smoke(Fails(8, 1))


def test_a_release_can_show_no_more_than_its_canaries():
    report = smoke(LabelHistogram(64, 20, ADD_REMOVE), seed=0)
    assert report.lower_bound <= math.log(64 / 0.05)
    assert report.detectable_shortfall is None
