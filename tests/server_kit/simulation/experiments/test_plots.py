"""Plots are drawn for whatever an experiment came to, and what there is nothing to show for is left out."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest

from privacy.errors import MissingExtra
from server_kit.simulation.experiments.plots import require_matplotlib, write_plots
from server_kit.simulation.experiments.plots.cohort_tree import lives
from server_kit.simulation.experiments.plots.curves import mean_curve
from server_kit.simulation.experiments.plots.style import Shown
from tests.server_kit.simulation.experiments.made_up import compared, experiment_file, finished, run

EVERY = {"accuracy_over_time", "agreement", "cohort_tree", "device_accuracy", "time_to_accuracy"}


def drawn(tmp_path, *runs):
    names = list(dict.fromkeys(name for name, _ in runs))
    experiment = experiment_file(tmp_path, compared(*names)).read()
    files = write_plots(experiment, finished(*runs), tmp_path / "plots")
    assert all(file.stat().st_size > 1000 for file in files)
    assert {file.suffix for file in files} == {".png", ".svg"}
    return {file.stem for file in files}


def test_every_plot_is_drawn_in_both_formats(tmp_path):
    runs = [(name, run(seed, cohorts=cohorts)) for seed in (0, 1) for name, cohorts in (("one", 1), ("many", 4))]
    assert drawn(tmp_path, *runs) == EVERY


def test_without_cohorts_and_truth_there_is_nothing_to_show_of_them(tmp_path):
    assert drawn(tmp_path, ("one", run(truth=False))) == EVERY - {"agreement", "cohort_tree"}


def test_a_plot_of_an_earlier_run_that_does_not_hold_any_more_goes_away(tmp_path):
    drawn(tmp_path, ("one", run(cohorts=3)))
    assert (tmp_path / "plots/cohort_tree.png").is_file()
    drawn(tmp_path, ("one", run()))
    assert not (tmp_path / "plots/cohort_tree.png").exists()


@pytest.mark.parametrize("points", [1, 2, 3])
def test_a_run_that_was_hardly_evaluated_is_drawn_as_far_as_it_goes(tmp_path, points):
    assert "device_accuracy" in drawn(tmp_path, ("one", run(points=points)))


def test_devices_that_were_never_tested_have_no_distribution(tmp_path):
    assert "device_accuracy" not in drawn(tmp_path, ("one", replace(run(), device_accuracies=())))


def test_many_contenders_and_many_cohorts_are_drawn(tmp_path):
    assert (
        drawn(tmp_path, *((f"contender {number}", run(points=9, cohorts=1 + 7 * number)) for number in range(8)))
        == EVERY
    )


def test_the_same_results_give_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        drawn(tmp_path / name, ("one", run(cohorts=2)))
    pairs = [(tmp_path / "first/plots", tmp_path / "second/plots")]
    for first, second in pairs:
        assert all(file.read_bytes() == (second / file.name).read_bytes() for file in first.iterdir())


def test_contenders_can_be_told_apart():
    looks = [
        tuple(map(str, (Shown("", number, {}).line[key] for key in ("color", "linestyle")))) for number in range(28)
    ]
    assert len(set(looks)) == len(looks)


def luminance(colour: str) -> float:
    """Relative luminance, by which people tell colours apart that they cannot see."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_no_colour_disappears_on_white():
    colours = {Shown("", number, {}).colour for number in range(7)}
    assert all(1.05 / (luminance(colour) + 0.05) > 2 for colour in colours)


def test_a_mean_over_seeds_stops_where_the_first_of_them_does():
    curve = mean_curve(
        [run(0), run(1, points=11)], lambda point: point.progress.seconds, lambda point: point.progress.accuracy
    )
    assert curve is not None
    assert curve.x[-1] == pytest.approx(run(1, points=11).points[-1].progress.seconds)


def test_a_mean_over_seeds_is_their_mean():
    runs = [run(0), run(1)]
    curve = mean_curve(runs, lambda point: point.progress.round, lambda point: point.progress.accuracy)
    assert curve is not None
    halves = [
        (a.progress.accuracy + b.progress.accuracy) / 2 for a, b in zip(runs[0].points, runs[1].points, strict=True)
    ]
    assert list(curve.mean) == pytest.approx(halves)


def test_a_cohort_that_comes_back_by_a_merge_has_a_gap():
    root, *children = lives(run(cohorts=2))
    assert root.cohort == "0"
    assert len(root.starts) == 2
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(root.stretches)]
    assert max(gaps) > 0
    assert all(len(child.starts) == 1 for child in children)


def test_without_matplotlib_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install 'covey\[audit\]'; nothing was run"):
        require_matplotlib()
