"""`covey simulate` from the command line: results, going on after a stop, and an exit code for everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import covey
from covey import ExitCode
from server_kit.simulation.experiments import ExperimentFile, run_experiment
from server_kit.simulation.experiments.results_folder import Finished, ResultsFolder
from tests.architecture.repository import ROOT
from tests.heard import heard
from tests.server_kit.simulation.experiments.made_up import SMALL, fails_for_fedprox, no_work, run

pytestmark = pytest.mark.integration


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(textwrap.dedent(SMALL))
    return path


def simulate(*arguments):
    return covey.run(covey.covey, ["simulate", *map(str, arguments)])


def finish_all(path, out):
    """As if every unit had been run."""
    experiment = ExperimentFile.open(path).read()
    for unit in experiment.units:
        ResultsFolder(out).write(experiment, Finished(unit, run(unit.seed), 1.0, None))


def test_the_quick_example_runs_and_leaves_everything_it_promises(tmp_path):
    command = [sys.executable, ROOT / "covey.py", "simulate", ROOT / "examples/experiments/quick.toml", "--seeds", "1"]
    ended = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == ExitCode.DONE, ended.stderr
    out = tmp_path / "quick-results"
    assert (out / "table.txt").read_text().strip() in ended.stdout
    assert "[4/4]" in ended.stderr
    assert {path.suffix for path in (out / "plots").iterdir()} == {".png", ".svg"}
    results = json.loads((out / "results.json").read_text())
    assert results["format"] == "covey-simulate-1"
    assert {"commit", "machine", "versions", "settings"} <= results.keys()
    assert all(len(unit["run"]["points"]) > 10 for unit in results["units"])
    ceiling = {each["name"]: each for each in results["contenders"]}["true groups"]
    assert ceiling["agreement"]["mean"] == 1


def test_what_is_finished_is_told_without_running_anything(small, tmp_path, capsys):
    finish_all(small, tmp_path / "small-results")
    assert simulate(small, "--json") == ExitCode.DONE
    told = capsys.readouterr()
    assert "4 of 4 units were finished before and are kept" in told.err
    assert json.loads(told.out)["identical"] == [["fedavg", "fedprox"]]
    assert simulate(small, "--quiet") == ExitCode.DONE
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert "Beware: fedavg and fedprox gave the same runs" in quiet.out


def test_only_what_is_missing_is_run(small, tmp_path):
    out = tmp_path / "out"
    finish_all(small, out)
    missing = ExperimentFile.open(small).read().units[2]
    folder = ResultsFolder(out)
    folder.unit_file(missing).unlink()
    before = {path: path.stat().st_mtime_ns for path in (out / "units").iterdir()}
    run_experiment(ExperimentFile.open(small), out, quiet=True, work=no_work)
    after = {path: path.stat().st_mtime_ns for path in (out / "units").iterdir()}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {folder.unit_file(missing)}


def test_a_changed_experiment_is_refused_until_one_says_fresh(small, tmp_path, capsys):
    finish_all(small, tmp_path / "small-results")
    small.write_text(small.read_text().replace("rounds = 6", "rounds = 5"))
    assert simulate(small) == ExitCode.FOUND_WRONG
    told = capsys.readouterr().err
    assert told.startswith("covey: small-results holds results of other settings (run.rounds changed")
    fresh = run_experiment(ExperimentFile.open(small), tmp_path / "small-results", fresh=True, quiet=True, work=no_work)
    assert fresh.failures == ()


def test_to_begin_again_with_a_file_that_cannot_run_costs_no_results(small, tmp_path):
    finish_all(small, tmp_path / "small-results")
    units = sorted((tmp_path / "small-results/units").iterdir())
    small.write_text(small.read_text().replace('partition = "iid"', 'partition = "natural_users"'))
    assert simulate(small, "--fresh") == ExitCode.USED_WRONGLY
    assert sorted((tmp_path / "small-results/units").iterdir()) == units


def test_a_run_that_fails_is_told_and_the_others_count(small, tmp_path):
    results = run_experiment(ExperimentFile.open(small), tmp_path / "out", quiet=True, work=fails_for_fedprox)
    assert [each["contender"] for each in results.document["failed"]] == ["fedprox", "fedprox"]
    first, other = results.document["contenders"]
    assert (first["seeds"], other["seeds"]) == ([0, 1], [])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"fedprox"', '"fedprxo"', "did you mean 'fedprox'?"),
        ('partition = "iid"', 'partition = "natural_users"', "digits does not say who made its samples"),
        ("devices = 12", 'dataset = "mnist"\ndata_dir = "nowhere"', "dataset 'mnist' not found"),
    ],
)
def test_a_wrong_file_is_wrong_usage_and_leaves_nothing_to_go_on_from(small, capsys, old, new, sentence):
    small.write_text(small.read_text().replace(old, new))
    assert simulate(small) == ExitCode.USED_WRONGLY
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split())
    assert "Traceback" not in told
    assert not list(small.parent.glob("small-results/units/*"))


@pytest.mark.parametrize(
    "arguments", [("nothing.toml",), ("small.toml", "--seeds", "0"), ("small.toml", "--jobs", "0")]
)
def test_wrong_arguments_are_wrong_usage(small, arguments):
    assert simulate(*arguments) == ExitCode.USED_WRONGLY


def test_without_matplotlib_nothing_is_run(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert simulate(small) == ExitCode.MISSING_EXTRA
    assert "pip install 'covey[audit]'" in capsys.readouterr().err
    assert not (tmp_path / "small-results").exists()


def test_ctrl_c_stops_cleanly_and_what_is_finished_can_be_gone_on_from(small, tmp_path):
    small.write_text(small.read_text().replace("rounds = 6", "rounds = 300").replace("seeds = 2", "seeds = 50"))
    command = [sys.executable, ROOT / "covey.py", "simulate", small, "--jobs", "1"]
    folder = ResultsFolder(tmp_path / "small-results")
    with heard(signal.SIGINT):
        running = subprocess.Popen(
            list(map(str, command)), cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    try:
        until = time.monotonic() + 120
        while not list(folder.path.glob("units/*.json")) and running.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        # To all processes of the terminal, as Ctrl-C does.
        os.killpg(running.pid, signal.SIGINT)
        _, told = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == ExitCode.INTERRUPTED
    assert "the same command goes on from there" in told
    assert "Traceback" not in told
    assert 1 <= len(folder.read(ExperimentFile.open(small).read())) < 100
