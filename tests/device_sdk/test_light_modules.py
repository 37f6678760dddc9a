"""What an app imports before it needs a vault costs it nothing heavy; each import is tried in a fresh interpreter."""

from __future__ import annotations

import pytest

from tests.architecture.repository import ROOT
from tests.architecture.test_light_imports import HEAVY, loaded_by_importing

LATER = HEAVY | {"numpy", "grpc", "google", "cryptography", "keyring", "safetensors", "click"}
LIGHT = [
    "device_sdk",
    "device_sdk.conditions",
    "device_sdk.config",
    "device_sdk.errors",
    "device_sdk.events",
    "device_sdk.state",
]


@pytest.mark.parametrize("module", LIGHT)
def test_an_import_is_light(module):
    assert loaded_by_importing(module, ROOT) & LATER == set()


@pytest.mark.parametrize("module", ["device_sdk.vault", "device_sdk.identity"])
def test_what_seals_loads_cryptography_and_nothing_heavier(module):
    loaded = loaded_by_importing(module, ROOT)
    assert "cryptography" in loaded
    assert loaded & (LATER - {"cryptography"}) == set()
