"""A file system with hardly any room, for what must survive a full disk."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def run_mounted(mounting: str, command: list[str], otherwise: str) -> None:
    """Run a command that must succeed where `mounting` holds, seen by it alone; skip aloud where one may not mount."""
    if shutil.which("unshare") is None or run("unshare", "-m", "sh", "-c", mounting).returncode != 0:
        pytest.skip(otherwise)
    finished = run("unshare", "-m", "sh", "-c", f"{mounting} && exec {shlex.join(command)}")
    assert finished.returncode == 0, finished.stderr


def run_on_small_disk(place: Path, size: str, command: list[str]) -> None:
    """Run a command that must succeed although `place` has only so much room."""
    mounting = f"mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(place))}"
    run_mounted(
        mounting,
        command,
        "a small file system can only be mounted as root on Linux; the file size limit below stands in",
    )
