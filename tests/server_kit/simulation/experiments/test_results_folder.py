"""What is finished is kept whole and read back as it was; results of other settings are never mixed in."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_kit.simulation.experiments.experiment import Unit
from server_kit.simulation.experiments.results_folder import Finished, ResultsFolder, ResultsRefused, write_whole
from server_kit.simulation.experiments.run_json import from_json, to_json
from server_kit.simulation.fairness import AccuracySpread
from server_kit.simulation.metrics import Progress
from server_kit.simulation.records import CohortPoint, Happening, Point, Run
from tests.server_kit.simulation.experiments.made_up import SMALL, compared, experiment_file, run

NUMBERS = st.floats(allow_infinity=False)
SHARES = st.floats(0, 1) | st.just(math.nan)
COUNTS = st.integers(0, 2**60)
NAMES = st.text(max_size=5)
POINTS = st.builds(
    Point,
    st.builds(Progress, COUNTS, NUMBERS, SHARES, COUNTS, COUNTS, COUNTS),
    st.builds(AccuracySpread, SHARES, SHARES, SHARES, SHARES, COUNTS, COUNTS),
    st.dictionaries(NAMES, st.builds(CohortPoint, COUNTS, SHARES, COUNTS), max_size=3),
    st.none() | st.floats(-1, 1),
    st.none() | st.floats(0, 100),
)
RUNS = st.builds(
    Run,
    NAMES,
    COUNTS,
    st.lists(POINTS, max_size=3).map(tuple),
    st.lists(
        st.builds(Happening, NAMES, COUNTS, NUMBERS, NAMES, st.lists(NAMES, max_size=2).map(tuple), NAMES), max_size=2
    ).map(tuple),
    st.lists(SHARES, max_size=4).map(tuple),
    st.dictionaries(NAMES, NAMES, max_size=3),
    st.dictionaries(NAMES, COUNTS, max_size=3),
)


@given(RUNS)
def test_a_run_comes_back_from_json_as_it_was(made):
    text = json.dumps(to_json(made), allow_nan=False)
    # As text, since NaN differs from itself.
    assert repr(from_json(Run, json.loads(text))) == repr(made)


def test_a_decoder_that_forgets_nan_would_be_noticed():
    made = run()
    stored = to_json(made)
    assert stored["device_accuracies"][-1] is None
    stored["device_accuracies"][-1] = 0.0
    assert repr(from_json(Run, stored)) != repr(made)


@pytest.fixture
def experiment(tmp_path):
    return experiment_file(tmp_path).read()


@pytest.fixture
def folder(tmp_path):
    return ResultsFolder(tmp_path / "out")


def keep(folder, experiment, *units):
    for unit in units:
        folder.write(experiment, Finished(unit, run(unit.seed), 1.5, "abc"))


def test_finished_units_are_found_again(folder, experiment):
    keep(folder, experiment, Unit("fedavg", 0), Unit("fedprox", 1))
    found = folder.read(experiment)
    assert list(found) == [Unit("fedavg", 0), Unit("fedprox", 1)]
    assert repr(found[Unit("fedprox", 1)].run) == repr(run(1))
    assert found[Unit("fedavg", 0)].commit == "abc"


def test_results_of_other_settings_are_refused_by_the_name_of_what_changed(tmp_path, folder, experiment):
    keep(folder, experiment, Unit("fedavg", 0))
    text = SMALL.replace("learning_rate = 0.1", "learning_rate = 0.2").replace("devices = 12", "devices = 14")
    with pytest.raises(ResultsRefused) as refused:
        folder.read(experiment_file(tmp_path, text).read())
    assert "population.devices, training.learning_rate changed" in str(refused.value)
    assert "--fresh" in str(refused.value)


def test_a_contender_that_changed_under_its_name_is_refused(tmp_path, folder, experiment):
    keep(folder, experiment, Unit("fedprox", 0))
    other = experiment_file(tmp_path, f"{SMALL}\n    overrides = {{ over_commit = 2.0 }}").read()
    with pytest.raises(ResultsRefused, match=r"compare\.overrides"):
        folder.read(other)


def test_more_seeds_and_contenders_keep_what_is_finished(tmp_path, folder, experiment):
    keep(folder, experiment, *experiment.units)
    more = experiment_file(tmp_path, f'{SMALL}\n    [[compare]]\n    preset = "fedyogi"', seeds=5).read()
    assert set(folder.read(more)) == set(experiment.units)


def test_to_begin_again_forgets_units_and_nothing_else(folder, experiment):
    keep(folder, experiment, *experiment.units)
    (folder.path / "units" / "notes.txt").write_text("mine")
    folder.clear()
    assert folder.read(experiment) == {}
    assert (folder.path / "units" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"terms": {}}'])
def test_a_broken_unit_is_named_and_not_taken_for_a_result(folder, experiment, content):
    keep(folder, experiment, Unit("fedavg", 0))
    folder.unit_file(Unit("fedavg", 0)).write_text(content)
    with pytest.raises(ResultsRefused, match=r"fedavg-seed-0\.json is not a unit"):
        folder.read(experiment)


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_two_processes_cannot_write_to_one_folder(folder):
    with folder.held(), pytest.raises(ResultsRefused, match="another covey simulate"), folder.held():
        pass
    with folder.held():
        pass


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ResultsRefused, match="holds other files"), ResultsFolder(tmp_path).held():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_names_that_look_alike_as_files_have_files_of_their_own(tmp_path, folder):
    experiment = experiment_file(tmp_path, compared("a/b", "a b", "a_b", "../up", "ε = 1")).read()
    files = [folder.unit_file(unit) for unit in experiment.units]
    assert len(set(files)) == len(files)
    assert {file.parent for file in files} == {folder.path / "units"}
