"""The base install on a device: few distributions, light imports, and all that it takes to train.

Installed for real, from a wheel of this tree; `tests/architecture/test_dependencies.py` counts what metadata promise.
"""

from __future__ import annotations

import subprocess

import pytest

from examples.numpy_device import new_model
from tests.architecture.repository import ROOT
from tests.architecture.test_dependencies import MOST_ON_A_DEVICE
from tests.device_sdk import base_install
from tests.device_sdk.base_install import IndexUnreachable, told
from tests.device_sdk.runtime.federation import started

HEAVY = {"torch", "scipy", "sklearn", "numpy"}
DISTRIBUTIONS = "import importlib.metadata as m; print(*{d.name.lower() for d in m.distributions()})"
NOT_COUNTED = {"pip", "setuptools"}


def loaded(python, module):
    """The top-level modules that are there after an import."""
    return {name.split(".")[0] for name in told(python, f"import sys, {module}; print(*sys.modules)").split()}


@pytest.mark.integration
def test_a_device_takes_part_with_the_base_install_alone(tmp_path):
    try:
        python = base_install.installed(tmp_path / "device", base_install.wheel(tmp_path))
    except IndexUnreachable as error:
        pytest.skip(f"NOT CHECKED, the base install on a device: {error}")
    there = set(told(python, DISTRIBUTIONS).split()) - NOT_COUNTED
    assert "covey" in there
    assert len(there) <= MOST_ON_A_DEVICE, sorted(there)
    assert loaded(python, "device_sdk") & HEAVY == set()
    assert loaded(python, "device_sdk.device") & HEAVY == set()
    assert "Enrol this device" in output_of(python.with_name("covey"), "device", "--help")
    federation = started(tmp_path, new_model(), rounds=1)
    try:
        output_of(
            python,
            *("-I", ROOT / "examples/numpy_device.py", "--state", tmp_path / "state", "--rounds", 1),
            *("--server", federation.server.enrolment_address),
            *("--invitation", federation.server.invitation().to_text()),
        )
        assert len(federation.updates) == 1
    finally:
        federation.server.close()


def output_of(*words):
    finished = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


def test_a_wheel_that_cannot_be_installed_is_not_taken_for_a_missing_network(tmp_path, monkeypatch):
    monkeypatch.setattr(base_install, "index_is_reachable", lambda folder: True)
    broken = tmp_path / "covey-0.1.0-py3-none-any.whl"
    broken.write_bytes(b"no wheel")
    with pytest.raises(AssertionError, match="the base install fails"):
        base_install.installed(tmp_path / "device", broken)


def test_without_an_index_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(base_install, "index_is_reachable", lambda folder: False)
    broken = tmp_path / "covey-0.1.0-py3-none-any.whl"
    broken.write_bytes(b"no wheel")
    with pytest.raises(IndexUnreachable):
        base_install.installed(tmp_path / "device", broken)
