"""What `pip install covey` gives a device: a wheel of this tree, installed with what it asks for and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.architecture.repository import PACKAGES, ROOT

IN_THE_WHEEL = (*PACKAGES, "covey.py", "pyproject.toml", "README.md", "LICENSE")


class IndexUnreachable(Exception):
    """There is nowhere to install from."""


def wheel(folder: Path) -> Path:
    """A wheel of this tree, built from a copy: building leaves its traces where it happens."""
    source = folder / "source"
    for name in IN_THE_WHEEL:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    return next(folder.glob("*.whl"))


def installed(home: Path, built: Path) -> Path:
    """The python of a new environment that holds this wheel and whatever it needs."""
    venv.create(home, clear=True)
    python = home / "bin" / "python"
    install = ("--python", python, "install", "--no-compile", "--constraint", ROOT / "constraints.txt", built)
    try:
        pip(*install)
    except subprocess.CalledProcessError as error:
        if index_is_reachable(home):
            raise AssertionError(f"the base install fails:\n{error.stderr[-2000:]}") from error
        raise IndexUnreachable("no package index can be reached from here") from error
    return python


def index_is_reachable(folder: Path) -> bool:
    try:
        pip("download", "--no-deps", "--no-cache-dir", "--dest", folder / "probe", "click")
    except subprocess.CalledProcessError:
        return False
    return True


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--retries", "1", *map(str, words)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def told(python: Path, code: str) -> str:
    """What a fresh interpreter of that environment prints; it sees nothing of this tree."""
    command = [str(python), "-I", "-c", code]
    return subprocess.run(command, cwd=python.parent, capture_output=True, text=True, check=True).stdout
