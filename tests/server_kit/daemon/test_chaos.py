"""The daemon's processes are killed at random moments: it comes back without help, and counts every update once."""

from __future__ import annotations

import pytest

from tests.server_kit.daemon.chaos import survived

pytestmark = pytest.mark.integration


def test_a_dozen_kills_lose_nothing_and_double_nothing(tmp_path):
    chaos = survived(tmp_path, hits=12, seed=1)
    assert chaos.fleet.thanked
