"""Coverage-guided fuzzing of everything that reads foreign bytes, where atheris is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.architecture.repository import ROOT

pytestmark = pytest.mark.stress

_SECONDS = 120


def test_foreign_bytes_give_a_message_or_a_typed_error():
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("the codec was NOT fuzzed by coverage: atheris is not installed (pip install atheris)")
    limits = [f"-max_total_time={_SECONDS}", "-rss_limit_mb=1024", "-timeout=10"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.device_sdk.wire.fuzz_codec", *limits],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr
