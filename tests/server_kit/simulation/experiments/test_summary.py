"""Figures over seeds: means with their errors, and differences seed by seed."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_kit.simulation.experiments.summary import estimate, final_of, identical, paired, summarise
from server_kit.simulation.metrics import first_reaching
from tests.server_kit.simulation.experiments.made_up import experiment_file, finished, run

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)


@given(VALUES)
def test_a_mean_and_its_error_are_those_of_the_textbook(values):
    found = estimate(values)
    assert found is not None
    assert found.standard_error is not None
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


def test_one_seed_has_no_error_and_none_no_mean():
    alone = estimate([0.5, None, math.nan])
    assert alone is not None
    assert (alone.mean, alone.standard_error, alone.seeds) == (0.5, None, 1)
    assert estimate([None, math.nan]) is None


def coverage(interval) -> float:
    """How often an interval for a difference of 0.02 between paired runs holds it."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(2000):
        luck = rng.normal(0, 0.3, 5)
        first = dict(enumerate(luck + rng.normal(0, 0.01, 5)))
        other = dict(enumerate(luck + 0.02 + rng.normal(0, 0.01, 5)))
        low, high = interval(first, other)
        held += low <= 0.02 <= high
    return held / 2000


def test_the_interval_of_a_paired_difference_holds_the_truth_as_often_as_it_says():
    def ours(first, other):
        found: Any = paired(first, other)
        return found.low, found.high

    assert coverage(ours) == pytest.approx(0.95, abs=0.02)


def test_an_interval_by_the_normal_law_is_caught_as_too_narrow():
    def normal(first, other):
        found: Any = paired(first, other)
        half = (found.high - found.low) / 2 * 1.96 / 2.776
        return found.mean - half, found.mean + half

    assert coverage(normal) < 0.92


def test_a_difference_is_taken_on_the_seeds_that_both_have():
    found = paired({0: 0.5, 1: 0.6, 7: 0.1}, {0: 0.6, 1: 0.8, 9: 0.9})
    assert found is not None
    assert found.mean == pytest.approx(0.15)
    assert (found.pairs, found.better) == (2, 2)
    assert paired({0: 0.5}, {1: 0.5}) is None


def test_one_pair_has_a_difference_but_no_interval():
    found = paired({0: 0.5}, {0: 0.4})
    assert found is not None
    assert (found.low, found.high, found.better) == (None, None, 0)


def summaries(tmp_path, *runs) -> Any:
    return summarise(experiment_file(tmp_path).read(), finished(*runs))


def test_each_contender_is_summed_up_over_its_own_seeds(tmp_path):
    runs = [("fedavg", run(0, level=0.6)), ("fedavg", run(1, level=0.6)), ("fedprox", run(0, level=0.9, cohorts=3))]
    first, other = summaries(tmp_path, *runs)
    assert first.final.mean == pytest.approx(
        statistics.fmean(final_of(each) for name, each in runs if name == "fedavg")
    )
    assert first.against_first is None
    assert (first.seeds, other.seeds) == ((0, 1), (0,))
    assert other.against_first.pairs == 1
    assert first.unused_answers == 4
    assert first.worst_tenth.mean < first.final.mean < first.best_tenth.mean


def test_final_is_the_mean_of_the_last_ten_and_not_the_best():
    made = run()
    assert final_of(made) == pytest.approx(statistics.fmean(point.progress.accuracy for point in made.points[-10:]))
    assert final_of(made) < max(point.progress.accuracy for point in made.points)


def test_seeds_that_never_arrive_are_counted_and_not_averaged(tmp_path):
    low, high = run(0, level=0.05), run(1, level=0.9)
    first, _ = summaries(tmp_path, ("fedavg", low), ("fedavg", high), ("fedprox", high))
    (target,) = first.targets
    arrival = first_reaching(high.curve, 0.2)
    assert arrival is not None
    assert (target.reached, target.seeds) == (1, 2)
    assert target.virtual_seconds.mean == arrival.seconds


def test_a_contender_without_a_finished_run_says_nothing(tmp_path):
    first, other = summaries(tmp_path, ("fedprox", run()))
    assert first.final is first.cohorts is first.epsilon is None
    assert other.against_first is None


def test_contenders_that_ended_alike_are_named():
    same = [("a", run(0)), ("b", run(0)), ("a", run(1)), ("b", run(1))]
    assert identical(finished(*same)) == [("a", "b")]


def test_contenders_that_differ_on_one_seed_are_not():
    assert identical(finished(("a", run(0)), ("b", run(0)), ("a", run(1)), ("b", run(1, level=0.7)))) == []
    assert identical(finished(("a", run(0)), ("b", run(1)))) == []
