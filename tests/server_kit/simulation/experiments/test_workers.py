"""Units run in processes: one that fails or dies leaves the others alone, and their number changes nothing."""

from __future__ import annotations

import pytest

from server_kit.simulation.experiments.experiment import Unit
from server_kit.simulation.experiments.progress import Silent
from server_kit.simulation.experiments.results_folder import ResultsFolder
from server_kit.simulation.experiments.workers import run_units, simulate_unit
from tests.server_kit.simulation.experiments.made_up import (
    dies_for_fedprox,
    experiment_file,
    fails_for_fedprox,
    no_work,
    tells_its_threads,
)

pytestmark = pytest.mark.integration


class Notes(Silent):
    def __init__(self):
        self.begun, self.ended, self.points = [], [], 0

    def started(self, unit):
        self.begun.append(unit)

    def point(self, unit, point):
        self.points += 1

    def finished(self, unit):
        self.ended.append(unit)


def worked(tmp_path, work, *, jobs=1, threads=1, name="out", seeds=2):
    file, folder, notes = experiment_file(tmp_path, seeds=seeds), ResultsFolder(tmp_path / name), Notes()
    experiment = file.read()
    failures = run_units(file, experiment.units, folder, notes, jobs=jobs, threads=threads, work=work)
    return folder.read(experiment), failures, notes


def test_every_unit_is_run_once_and_told(tmp_path):
    found, failures, notes = worked(tmp_path, no_work, jobs=2)
    assert (len(found), failures) == (4, [])
    assert sorted(notes.begun) == sorted(notes.ended) == sorted(found)
    assert notes.points == 4 * 21


def test_a_unit_that_fails_leaves_the_others_alone(tmp_path):
    found, failures, _ = worked(tmp_path, fails_for_fedprox)
    assert set(found) == {Unit("fedavg", 0), Unit("fedavg", 1)}
    assert [failure.unit.contender for failure in failures] == ["fedprox", "fedprox"]
    # An error we did not foresee may carry data: its message is for --debug only.
    assert failures[0].sentence == "a fault of its own (ZeroDivisionError)"
    assert "not for one's eyes" in failures[0].details


def test_a_process_that_dies_costs_its_unit_only(tmp_path):
    found, failures, _ = worked(tmp_path, dies_for_fedprox)
    assert set(found) == {Unit("fedavg", 0), Unit("fedavg", 1)}
    assert {failure.sentence for failure in failures} == {"its process ended with signal 9"}


def test_a_process_has_the_threads_it_was_given(tmp_path):
    found, _, _ = worked(tmp_path, tells_its_threads, threads=2)
    assert {each.run.preset for each in found.values()} == {"2 threads"}


def test_a_unit_ends_the_same_whatever_the_number_of_processes_and_threads(tmp_path):
    alone, _, _ = worked(tmp_path, simulate_unit, jobs=1, threads=2, name="alone", seeds=1)
    together, _, _ = worked(tmp_path, simulate_unit, jobs=2, threads=1, name="together", seeds=1)
    assert {unit: repr(each.run) for unit, each in alone.items()} == {
        unit: repr(each.run) for unit, each in together.items()
    }
    assert len(alone) == 2
