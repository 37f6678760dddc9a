"""A round takes the memory of three models, whatever the number of devices: updates stream through the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MODELS = 3.4
"""Three: a sum of double precision, and one update. Besides a few mebibytes for pieces and blocks."""


GUARD = {"kind": "norm_bound", "bound": 1.0, "inner": {"kind": "guarded", "inner": "fedavg"}}
"""As a daemon puts it before a preset's own rule."""


def models_needed(directory: Path, numbers: int, updates: int, aggregator: str | dict[str, Any] = "fedavg") -> float:
    """By a worker that makes the next model, beyond the one it has."""
    command = [sys.executable, "-m", "tests.server_kit.daemon.folding_memory", str(directory), str(numbers)]
    run = subprocess.run(
        [*command, str(updates), json.dumps(aggregator)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return float(run.stdout)


@pytest.mark.integration
def test_a_round_takes_three_models_whatever_the_number_of_devices(tmp_path):
    assert models_needed(tmp_path, 12_500_000, 6) < MODELS


@pytest.mark.integration
def test_a_guarded_round_takes_no_more(tmp_path):
    assert models_needed(tmp_path, 12_500_000, 6, GUARD) < MODELS


@pytest.mark.integration
def test_an_aggregator_that_hoards_is_caught(tmp_path):
    assert models_needed(tmp_path, 12_500_000, 4, "tests.server_kit.daemon.fault_parts:Hoard") > MODELS


@pytest.mark.stress
@pytest.mark.parametrize("aggregator", ["fedavg", GUARD], ids=["fedavg", "guarded"])
def test_fifty_updates_of_fifty_megabytes_take_no_more(tmp_path, aggregator):
    assert models_needed(tmp_path, 12_500_000, 50, aggregator) < MODELS
