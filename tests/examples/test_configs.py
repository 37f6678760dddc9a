"""The settings that we show can be run as they stand."""

from __future__ import annotations

import pytest

from server_kit.config import ServerConfig
from server_kit.config.policy import check_policy
from server_kit.models import initial_model
from server_kit.presets import strategy
from tests.architecture.repository import ROOT

FILES = sorted((ROOT / "examples/configs").glob("*.toml"))


def test_there_are_some():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_settings_hold_together_and_leave_room_for_their_rounds(path):
    config = ServerConfig.read(path)
    federation = config.federation

    assert check_policy(config).rounds >= max(1, federation.rounds)
    assert strategy(federation.preset, federation.overrides) is not None
    assert initial_model(federation.model, federation.seed).weights.numel() > 0
