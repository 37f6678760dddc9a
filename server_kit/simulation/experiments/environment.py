"""Where results were made: the commit, the machine, the versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("covey", "numpy", "scikit-learn", "scipy", "torch")


@cache
def commit() -> str | None:
    """The commit of the checkout that this code lies in, with a + where files differ from it; None elsewhere."""
    git, folder = shutil.which("git"), Path(__file__).parents[3]
    if git is None or not (folder / ".git").exists():
        return None
    try:
        head = _output(git, folder, "rev-parse", "HEAD")
        changed = _output(git, folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}{'+' if changed else ''}"


def machine() -> dict[str, Any]:
    """What the results were computed on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cores": cores(), "memory_bytes": pages, "system": platform.system(), "processor": platform.machine()}


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Of Python and of what computes."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _output(git: str, folder: Path, *arguments: str) -> str:
    finished = subprocess.run(
        [git, "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return finished.stdout.strip()
