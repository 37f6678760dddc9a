"""Imports point one way: server_kit -> device_sdk.wire -> privacy; simulation and demo use all of device_sdk."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.repository import PACKAGES, imported_names, is_within, name_of, package_sources

# The first folder that holds a file decides for it.
MAY_IMPORT = {
    "device_sdk/wire/": ("device_sdk.wire", "privacy"),
    "device_sdk/": ("device_sdk", "privacy"),
    "privacy/": ("privacy",),
    "server_kit/demo/": ("server_kit", "device_sdk", "privacy"),
    "server_kit/simulation/": ("server_kit", "device_sdk", "privacy"),
    "server_kit/": ("server_kit", "device_sdk.wire", "privacy"),
}
OURS = (*PACKAGES, "covey", "tests", "examples", "benchmarks")


def wrong_imports(file: str, source: str) -> list[str]:
    """What `file` imports against the direction, each as a sentence."""
    home, allowed = next((folder, names) for folder, names in MAY_IMPORT.items() if file.startswith(folder))
    return [
        f"{file}:{line} imports {name}; code in {home} may import {', '.join(allowed)}"
        for name, line in imported_names(ast.parse(source))
        if name.startswith(".") or any(is_within(name, ours) for ours in OURS)
        if not any(is_within(name, module) for module in allowed)
    ]


@pytest.mark.parametrize("path", package_sources(*PACKAGES), ids=name_of)
def test_imports_point_downwards(path):
    assert wrong_imports(name_of(path), path.read_text(encoding="utf-8")) == []


def test_there_are_sources_to_look_at():
    assert len(package_sources("privacy")) > 3


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("privacy/ledger.py", "from device_sdk.vault import Vault"),
        ("privacy/cli.py", "import covey"),
        ("privacy/ledger.py", "import server_kit.store as store"),
        ("privacy/ledger.py", "def later():\n    from device_sdk import Device"),
        ("privacy/ledger.py", "importlib.import_module('server_kit.round')"),
        ("privacy/ledger.py", "from .budget import PrivacyBudget"),
        ("privacy/ledger.py", "from . import budget"),
        ("device_sdk/device.py", "from server_kit.interfaces import Fleet"),
        ("device_sdk/wire/codec.py", "from device_sdk.vault import Vault"),
        ("device_sdk/wire/codec.py", "import device_sdk"),
        ("server_kit/round.py", "from device_sdk import Device"),
        ("server_kit/daemon/gateway.py", "from device_sdk.wired import nearly"),
    ],
)
def test_an_import_against_the_direction_is_caught(file, source):
    (sentence,) = wrong_imports(file, source)
    assert sentence.startswith(f"{file}:")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("privacy/ledger.py", "import os, numpy\nfrom privacy.budget import PrivacyBudget"),
        ("device_sdk/device.py", "from privacy import PrivacyBudget\nfrom device_sdk.wire.codec import encode"),
        ("server_kit/round.py", "from device_sdk.wire import messages\nimport privacy"),
        ("server_kit/simulation/experiment.py", "from device_sdk.trainers import numpy"),
        ("server_kit/round.py", "import privacy_tools_of_others"),
    ],
)
def test_an_import_along_the_direction_passes(file, source):
    assert wrong_imports(file, source) == []
