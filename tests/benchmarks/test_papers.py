"""The papers' experiments can be run as they stand, and their tables say what the runs did."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import figures, made_data, tables
from benchmarks.papers.expected import CLAIMS, PUBLISHED, SIDE_BY_SIDE, Claim
from benchmarks.papers.figures import Figures
from server_kit.presets import PRESETS
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.results_folder import Finished, ResultsFolder
from tests.server_kit.simulation.experiments.made_up import compared, experiment_file, run

FILES = sorted(Path(tables.__file__).parent.glob("*.toml"))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Empty files by the names of the data sets: reading an experiment reads no data."""
    for name in ("mnist_writers", "mnist_writers_14", "mnist_writers_7", "speakers_35", "har_hapt"):
        (tmp_path / f"{name}.npz").touch()
    return tmp_path


def finished_in(results: ResultsFolder, experiment: Experiment) -> dict[Unit, Figures]:
    return {unit: figures.figures_of(experiment, each) for unit, each in results.read(experiment).items()}


def written(folder: Path, experiment: Experiment, levels: dict[str, float], seeds: range) -> ResultsFolder:
    results = ResultsFolder(folder)
    for name, level in levels.items():
        for seed in seeds:
            results.write(experiment, Finished(Unit(name, seed), run(seed, level=level), 1.0, "0123456789abc"))
    return results


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment_can_be_read_has_ten_seeds_and_names_its_command(path, data_dir):
    experiment = ExperimentFile.open(path, data_dir=data_dir).read()

    assert experiment.repeats.seeds >= 10
    assert f"covey simulate benchmarks/papers/{path.name}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*PUBLISHED, *CLAIMS}))
def test_what_is_expected_is_expected_of_contenders_that_run(name, data_dir):
    experiment = ExperimentFile.open(Path(tables.__file__).parent / f"{name}.toml", data_dir=data_dir).read()
    running = {contender.name for contender in experiment.contenders}
    targets = {None, *experiment.repeats.targets}

    assert PUBLISHED.get(name, {}).keys() <= running
    for claim in CLAIMS.get(name, []):
        assert {claim.better, claim.other} <= running
        assert claim.target in targets


def test_only_seeds_that_everyone_has_finished_count(tmp_path):
    experiment = experiment_file(tmp_path, compared("a", "b"), seeds=4).read()
    results = written(tmp_path / "out", experiment, {"a": 0.7, "b": 0.8}, range(2))
    written(tmp_path / "out", experiment, {"a": 0.1}, range(2, 4))

    text = tables.tables_of(experiment, tables.complete(experiment, finished_in(results, experiment)))

    assert "seeds 0 to 1, commit 0123456" in text
    assert re.search(r"\| a \| 6\d\.\d ± 0\.\d \|", text)


def test_claims_are_judged_by_pairs_of_runs_with_the_same_seed(tmp_path, monkeypatch):
    monkeypatch.setitem(CLAIMS, "experiment", [Claim("b", "a"), Claim("a", "b"), Claim("b", "a", 0.5)])
    text = compared("a", "b").replace("targets = [0.2]", "targets = [0.5]")
    experiment = experiment_file(tmp_path, text, seeds=3).read()
    results = written(tmp_path / "out", experiment, {"a": 0.7, "b": 0.8}, range(3))

    better, worse, sooner = tables.tables_of(
        experiment, tables.complete(experiment, finished_in(results, experiment))
    ).splitlines()[-3:]

    assert re.search(r"\+(9|10)\.\d points \|.*\| 3 of 3 \|$", better)
    assert re.search(r"-(9|10)\.\d points \|.*\| 0 of 3 \|$", worse)
    assert re.search(r"-\d+ % \|.* % \| 3 of 3 \|$", sooner)


def test_a_target_that_is_never_reached_has_no_time(tmp_path, monkeypatch):
    monkeypatch.setitem(CLAIMS, "experiment", [Claim("b", "a", 0.99)])
    experiment = experiment_file(tmp_path, compared("a", "b"), seeds=2).read()
    results = written(tmp_path / "out", experiment, {"a": 0.7, "b": 0.8}, range(2))

    assert "never gets there" in tables.tables_of(
        experiment, tables.complete(experiment, finished_in(results, experiment))
    )


def test_experiments_side_by_side_show_who_was_in_which(tmp_path):
    found = {}
    for name, levels in (("one", {"a": 0.7, "b": 0.8}), ("two", {"a": 0.6, "c": 0.5})):
        folder = tmp_path / name
        folder.mkdir()
        experiment = experiment_file(folder, compared(*levels), seeds=2).read()
        found[name] = experiment, finished_in(written(folder / "out", experiment, levels, range(2)), experiment)

    head, _, a, b, c = tables.side_by_side(found).splitlines()

    assert head == "|  | one, 2 seeds | two, 2 seeds |"
    assert re.match(r"\| a \| 6\d\.\d ± [^|]* \| 5\d\.\d ± ", a)
    assert b.endswith("| – |")
    assert c.startswith("| c | – |")


def test_experiments_that_stand_side_by_side_exist():
    assert {name for names in SIDE_BY_SIDE.values() for name in names} <= {path.stem for path in FILES}


def test_a_table_replaces_what_stands_between_its_marks_and_nothing_else():
    text = "before\n<!-- table one -->\nold\n<!-- end -->\nbetween\n<!-- table two -->\nkept\n<!-- end -->\n"

    assert tables.replaced(text, {"one": r"| \1 |", "three": "nowhere"}) == text.replace("\nold\n", "\n\n| \\1 |\n")


def test_what_is_known_of_a_run_survives_being_written_down(tmp_path):
    experiment = experiment_file(tmp_path, compared("a", "b"), seeds=2).read()
    results = written(tmp_path / "out", experiment, {"a": 0.7, "b": 0.8}, range(2))
    before = finished_in(results, experiment)

    figures.write(tmp_path / "kept.csv", before.values(), experiment.repeats.targets)
    after = {each.unit: each for each in figures.read(tmp_path / "kept.csv")}

    assert after.keys() == before.keys()
    for unit, each in after.items():
        assert (each.terms, each.commit) == (before[unit].terms, before[unit].commit)
        assert each.final == pytest.approx(before[unit].final, rel=1e-5)
        assert each.seconds_to == pytest.approx(before[unit].seconds_to, rel=1e-5)


def test_lines_are_kept_until_the_runs_that_replace_them_are_there(tmp_path):
    experiment = experiment_file(tmp_path, compared("a", "b"), seeds=2).read()
    written(tmp_path / "one" / "experiment", experiment, {"a": 0.7, "b": 0.8}, range(1))
    written(tmp_path / "two" / "experiment", experiment, {"a": 0.7, "b": 0.8}, range(1, 2))

    first = tables.taken_in(experiment, tmp_path / "one", tmp_path / "results")
    both = tables.taken_in(experiment, tmp_path / "two", tmp_path / "results")

    assert {unit.seed for unit in first} == {0}
    assert {unit.seed for unit in both} == {0, 1}


@pytest.mark.parametrize("change", ["another setting", "another preset"])
def test_a_line_run_on_other_terms_counts_no_more(tmp_path, monkeypatch, change):
    experiment = experiment_file(tmp_path, compared("a", "b"), seeds=1).read()
    kept = finished_in(written(tmp_path / "out", experiment, {"a": 0.7, "b": 0.8}, range(1)), experiment)
    assert figures.current(experiment, kept.values()) == kept

    if change == "another preset":
        monkeypatch.setitem(PRESETS, experiment.contenders[0].preset, {"over_commit": 2.0})
    else:
        text = re.sub(r"rounds = \d+", "rounds = 7", compared("a", "b"))
        experiment = experiment_file(tmp_path, text, seeds=1).read()

    assert Unit("a", 0) not in figures.current(experiment, kept.values())


def test_every_kept_line_is_of_an_experiment_that_exists():
    assert {path.stem for path in figures.RESULTS.glob("*.csv")} <= {path.stem for path in FILES}


def test_images_are_made_smaller_by_the_mean_of_squares():
    images = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)

    assert made_data.pooled(images, 2).tolist() == [[[2, 4], [10, 12]]]


def test_speakers_get_as_many_records_of_each_kind_as_they_have_words():
    counts = np.array([[2, 0, 1], [1, 3, 0]])
    kinds = [np.full((2, 4, 4), label, dtype=np.uint8) for label in range(3)]

    dealt = made_data.dealt(kinds, counts)

    found = np.zeros_like(counts)
    np.add.at(found, (dealt["user"], dealt["y"]), 1)
    assert found.tolist() == counts.tolist()
    assert (dealt["x"][:, 0, 0] == dealt["y"]).all()
