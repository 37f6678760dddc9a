"""A training loop of an app's own takes part without torch, and does what the SDK's own trainer does."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from device_sdk.trainers import NumpyTrainer, TrainingSettings
from examples.numpy_device import ACTIVITIES, FEATURES, fits, new_model, readings, shares, trained
from tests.architecture.repository import ROOT
from tests.device_sdk.runtime.federation import check_reconciled, no_weights, started

WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "scipy", "sklearn"):
    sys.modules[name] = None  # an import of it fails, as if it were not installed
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.fixture
def federation(tmp_path):
    federation = started(tmp_path, new_model(), rounds=3)
    yield federation
    federation.server.close()


def run_without_torch(script, *words):
    command = [sys.executable, "-c", WITHOUT_TORCH, str(script), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def task(weights, **settings):
    """As much of a task as training looks at."""
    wanted = TrainingSettings(**{"learning_rate": 0.1, "batch_size": 1000, **settings})
    return SimpleNamespace(weights=weights, settings=wanted, between_batches=lambda: None)


@pytest.mark.integration
def test_a_device_without_torch_trains_in_its_own_loop(federation, tmp_path):
    script = ROOT / "examples/numpy_device.py"
    words = ("--server", federation.server.enrolment_address, "--state", tmp_path / "state")
    first = run_without_torch(script, *words, "--rounds", 2, "--invitation", federation.server.invitation().to_text())
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.count("sent") == 2
    again = run_without_torch(script, *words, "--rounds", 1)
    assert (again.returncode, again.stderr) == (0, "")
    assert len(federation.updates) == 3
    check_reconciled(federation, tmp_path / "state")


def test_the_process_of_that_test_has_no_torch(tmp_path):
    (tmp_path / "app.py").write_text("import torch")
    assert "ModuleNotFoundError" in run_without_torch(tmp_path / "app.py").stderr


def test_its_loop_learns_the_activities():
    inputs, labels = readings(person=1)
    weights = new_model()
    update = trained(task(weights, batch_size=10, epochs=30), inputs, labels)
    learned = {name: part + update[name] for name, part in weights.items()}
    assert np.mean(shares(learned, inputs).argmax(axis=1) == labels) > 0.9
    assert not weights["dense1.weight"].any()


def test_its_loop_is_the_sgd_of_the_sdks_own_trainer():
    inputs, labels = readings(person=2)
    weights = {name: part + 0.25 for name, part in new_model().items()}
    settings = TrainingSettings(0.1, batch_size=1000, epochs=3)  # one batch, whose order changes nothing
    expected = NumpyTrainer(inputs, labels).train(weights, settings).update
    for asked in ({"epochs": 3}, {"steps": 3}):
        update = trained(task(weights, **asked), inputs, labels)
        for name in weights:
            np.testing.assert_allclose(update[name], expected[name], atol=1e-5)


@pytest.mark.parametrize("settings", [{"proximal": 0.1}, {"momentum": 0.9}, {"halves": True}, {"mask": {}}])
def test_what_its_loop_cannot_do_is_declined(settings):
    weights = new_model()
    assert fits(task(weights))
    assert not fits(task(weights, **settings))


def test_a_model_of_another_shape_is_declined():
    assert not fits(task(no_weights(FEATURES + 1, len(ACTIVITIES))))
    assert not fits(task({}))


def test_people_differ():
    assert not np.array_equal(readings(1)[0], readings(2)[0])
