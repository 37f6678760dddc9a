"""Server and devices in one program get from nothing to a model that reads digits."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.architecture.repository import ROOT

pytestmark = pytest.mark.integration


def test_four_devices_learn_to_read_digits(tmp_path):
    command = [sys.executable, str(ROOT / "examples/quickstart.py"), str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode == 0, ended.stderr
    found = re.search(r"model 3 reads (\d+)% of the digits", ended.stdout)
    assert found is not None
    assert int(found[1]) > 40  # by chance it would be 10
