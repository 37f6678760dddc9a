"""The real thing at a size that people run: one server, forty device processes with two kinds of data, mutual TLS."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.server_kit.demo.demo_process import DemoProcess

pytestmark = [pytest.mark.stress, pytest.mark.integration]


def test_forty_devices_of_two_kinds_find_their_cohorts_and_each_model_beats_the_global_one(tmp_path):
    demo = DemoProcess(tmp_path, "--devices", "40", "--kinds", "2")
    try:
        assert demo.read_to_end() == 0, demo.text
    finally:
        demo.clean_up()
    numbers = json.loads((demo.out / "results.json").read_text())
    command = [sys.executable, "-m", "covey", "server", "cohorts", str(demo.out / "federation"), "--json"]
    cohorts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert numbers["agreement"] == pytest.approx(1.0), demo.text
    assert all(line["cohort_model"] > line["one_model"] for line in numbers["by_kind"])
    assert sorted(cohort["devices"] for cohort in cohorts["cohorts"]) == [20, 20]
