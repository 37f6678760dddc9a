"""Importing a package that runs on devices loads nothing heavy; each import is tried in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import PACKAGES, ROOT

HEAVY = {"dp_accounting", "matplotlib", "opacus", "opendp", "pandas", "ray", "rich", "scipy", "sklearn", "torch"}
MUST_NOT_LOAD = {
    "privacy": HEAVY | {"numpy", "click"},
    "device_sdk": HEAVY,
    "covey": HEAVY | {"numpy", "cryptography", *PACKAGES},
}
THERE = [name for name in MUST_NOT_LOAD if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()]


def loaded_by_importing(module: str, folder: Path) -> set[str]:
    """The top-level modules that a fresh interpreter holds after importing `module` from `folder`."""
    finished = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in finished.stdout.split()}


@pytest.mark.parametrize("module", THERE)
def test_an_import_is_light(module):
    loaded = loaded_by_importing(module, ROOT)
    assert module in loaded
    assert loaded & MUST_NOT_LOAD[module] == set()


def test_there_is_something_to_import():
    assert {"privacy", "covey"} <= set(THERE)


def test_a_heavy_import_behind_another_module_is_caught(tmp_path):
    (tmp_path / "planted.py").write_text("import planted_part")
    (tmp_path / "planted_part.py").write_text("import numpy.linalg")
    assert "numpy" in loaded_by_importing("planted", tmp_path)
