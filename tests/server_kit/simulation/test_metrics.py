"""The figures that comparisons rest on, checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from server_kit.errors import InvalidSetting, ServerError
from server_kit.simulation.fairness import accuracy_spread, included_groups
from server_kit.simulation.metrics import (
    Progress,
    agreement,
    bytes_to_accuracy,
    final_accuracy,
    first_reaching,
    steps_to_accuracy,
    time_to_accuracy,
)


def curve(*accuracies: float) -> list[Progress]:
    return [
        Progress(number, 10.0 * number, accuracy, bytes_down=100 * number, bytes_up=number, client_steps=7 * number)
        for number, accuracy in enumerate(accuracies, start=1)
    ]


class TestTimeToAccuracy:
    def test_it_is_the_first_time_that_the_moving_mean_gets_there(self):
        run = curve(0.1, 0.9, 0.2, 0.6, 0.8, 0.7)
        assert time_to_accuracy(run, 0.7, window=2) == 50.0
        assert steps_to_accuracy(run, 0.7, window=2) == 35
        assert bytes_to_accuracy(run, 0.7, window=2) == 505

    def test_a_single_lucky_evaluation_is_no_arrival(self):
        run = curve(0.1, 0.9, 0.2, 0.6, 0.8, 0.7)
        assert time_to_accuracy(run, 0.9, window=1) == 20.0
        assert time_to_accuracy(run, 0.9, window=3) is None

    def test_never_is_none(self):
        assert first_reaching(curve(0.1, 0.2), 0.9, window=1) is None
        assert time_to_accuracy([], 0.1) is None
        assert steps_to_accuracy(curve(0.9), 0.1, window=5) is None
        assert bytes_to_accuracy(curve(0.9), 0.1, window=5) is None

    def test_reaching_exactly_is_reaching(self):
        assert time_to_accuracy(curve(0.1, 0.2, 0.3), 0.2, window=3) == 30.0

    def test_a_window_of_nothing_is_refused(self):
        with pytest.raises(InvalidSetting):
            first_reaching(curve(0.5), 0.1, window=0)


class TestFinalAccuracy:
    def test_best_median_and_last(self):
        final = final_accuracy(curve(0.5, 0.9, 0.6, 0.7), last=2)
        assert (final.best, final.median, final.last_mean) == pytest.approx((0.9, 0.65, 0.65))

    def test_an_empty_run_has_none(self):
        with pytest.raises(InvalidSetting):
            final_accuracy([])


class TestSpread:
    def test_tenths_mean_and_variance(self):
        accuracies = np.linspace(0, 0.95, 20)
        spread = accuracy_spread(np.random.default_rng(0).permutation(accuracies))
        assert spread.mean == pytest.approx(accuracies.mean())
        assert spread.worst_tenth == pytest.approx(0.025)
        assert spread.best_tenth == pytest.approx(0.925)
        assert spread.variance_points == pytest.approx(np.var(accuracies * 100))

    def test_devices_without_tests_are_left_out_and_counted(self):
        spread = accuracy_spread([0.5, math.nan, 1.0, math.nan])
        assert (spread.mean, spread.tested, spread.untested) == (0.75, 2, 2)
        assert (spread.worst_tenth, spread.best_tenth) == (0.5, 1.0)

    def test_where_nobody_can_be_tested_nothing_is_claimed(self):
        spread = accuracy_spread([math.nan])
        assert math.isnan(spread.mean)
        assert (spread.tested, spread.untested) == (0, 1)

    @pytest.mark.parametrize("wrong", [[1.5], [-0.1], [[0.5]], [50.0, 60.0]])
    def test_what_is_no_share_is_refused(self, wrong):
        with pytest.raises(InvalidSetting):
            accuracy_spread(wrong)

    def test_inclusion_counts_groups(self):
        groups = np.array([0, 0, 0, 0, 5, 5])
        assert included_groups(np.array([1, 1, 1, 0, 1, 0], bool), groups) == (1, 2)
        assert included_groups(np.array([1, 1, 1, 0, 1, 0], bool), groups, share=0.5) == (2, 2)


class TestAgreement:
    def test_names_of_clusters_do_not_matter(self):
        truth = np.array([0, 0, 1, 1, 2, 2])
        assert agreement(np.array([7, 7, 3, 3, 0, 0]), truth) == 1.0

    def test_one_cluster_and_chance_agree_with_nothing(self):
        truth = np.repeat(np.arange(4), 50)
        assert agreement(np.zeros(200, int), truth) == 0.0
        assert agreement(np.random.default_rng(0).integers(0, 4, 200), truth) == pytest.approx(0, abs=0.05)

    def test_it_agrees_with_scikit_learn(self):
        from sklearn.metrics import adjusted_rand_score

        found, truth = np.random.default_rng(1).integers(0, 3, (2, 60))
        assert agreement(found, truth) == pytest.approx(adjusted_rand_score(truth, found))

    def test_an_unknown_truth_is_not_made_up(self):
        assert agreement(np.zeros(3, int), None) is None

    def test_devices_must_match(self):
        with pytest.raises(ServerError):
            agreement(np.zeros(2, int), np.zeros(3, int))
