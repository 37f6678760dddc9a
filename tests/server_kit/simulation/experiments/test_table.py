"""The table fits a terminal of 80 columns and says what it does not know."""

from __future__ import annotations

import pytest

from server_kit.simulation.experiments.summary import summarise
from server_kit.simulation.experiments.table import results_text
from server_kit.simulation.experiments.units_of_measure import count_unit, in_unit, size_unit, time_unit
from tests.server_kit.simulation.experiments.made_up import compared, experiment_file, finished, run

LONG = "a contender with a name that nobody would want to read twice in one table"


def text_of(tmp_path, names, runs, alike=()):
    experiment = experiment_file(tmp_path, compared(*names)).read()
    return results_text(summarise(experiment, finished(*runs)), 21, alike)


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_no_line_is_wider_than_80_columns(tmp_path, seeds):
    names = ["fedavg", LONG, *(f"number {number}" for number in range(20))]
    runs = [(name, run(seed, cohorts=3)) for name in names for seed in range(seeds)]
    text = text_of(tmp_path, names, runs, [("fedavg", LONG)])
    assert max(map(len, text.splitlines())) <= 80


def test_one_seed_claims_no_error_and_no_interval(tmp_path):
    text = text_of(tmp_path, ["a", "b"], [("a", run()), ("b", run(level=0.9))])
    assert "±" not in text
    assert "needs 2 seeds" in text


def test_two_seeds_show_their_error(tmp_path):
    text = text_of(tmp_path, ["a", "b"], [(name, run(seed)) for name in "ab" for seed in (0, 1)])
    assert "±" in text
    assert "0 of 2 seeds" in text


def test_what_was_never_reached_has_no_time(tmp_path):
    text = text_of(tmp_path, ["a", "b"], [("a", run(level=0.05)), ("b", run())])
    (line,) = [line for line in text.splitlines() if "0 of 1 " in line and line.startswith("a")]
    assert line.split()[-3:] == ["–", "–", "–"]


def test_columns_of_which_nothing_is_known_are_left_out(tmp_path):
    runs = [("a", run(truth=False)), ("b", run(truth=False))]
    assert "ARI" not in text_of(tmp_path, ["a", "b"], runs)
    assert "ARI" in text_of(tmp_path, ["a", "b"], [("a", run()), ("b", run())])


def test_a_reader_is_warned_of_contenders_that_ended_alike(tmp_path):
    runs = [("a", run()), ("b", run())]
    assert "Beware: a and b gave the same runs" in text_of(tmp_path, ["a", "b"], runs, [("a", "b")])
    assert "Beware" not in text_of(tmp_path, ["a", "b"], runs)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, time_unit(0), "0.00 s"),
        (95.7, time_unit(95.7), "95.7 s"),
        (95.7, time_unit(300), "1.59 min"),
        (7200, time_unit(7200), "2.00 h"),
        (1e6, time_unit(1e6), "11.6 d"),
        (12_345_678, size_unit(12_345_678), "12.3 MB"),
        (999, size_unit(999), "999 B"),
        (4_262, count_unit(4_262), "4,262"),
        (5e6, count_unit(5e6), "5.00 million"),
    ],
)
def test_amounts_have_three_digits_and_a_unit(value, unit, text):
    assert in_unit(value, unit) == text
