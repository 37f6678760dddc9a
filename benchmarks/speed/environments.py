"""An environment of its own for each peer, made once under a cache folder; the project's stays untouched."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"  # the version that the project pins: everybody computes with the same
PACKAGES = {
    "flower": ("flwr[simulation]==1.41.*", TORCH),
    "pfl": ("pfl[pytorch]==0.6.*", TORCH),
}
ROOT = Path(__file__).parents[2]


def default_folder() -> Path:
    """Inside the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "covey" / "benchmarks"


def programs(peer: str, folder: Path) -> Path:
    """The folder of a peer's python and scripts, after making the environment if it is not there yet."""
    home = folder / peer
    ready = home / "ready"
    if not ready.exists():
        print(f"making an environment for {peer} in {home} ...", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES[peer]]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        ready.touch()
    return home / "bin"


def surroundings() -> dict[str, str]:
    """Environment variables for a measured process: our modules, no telemetry."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
