"""What the demo needs before it starts anything; whatever is missing is one sentence."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from privacy.errors import MissingExtra
from server_kit.demo.errors import DemoFailed

OLDEST_PYTHON = (3, 11)
PACKAGES = ("alembic", "matplotlib", "pydantic", "rich", "sklearn", "sqlalchemy", "starlette", "torch", "uvicorn")
_SERVER_MEGABYTES, _DEVICE_MEGABYTES = 1500, 70
_MARKER = ".made-by-covey-demo"


def check(devices: int) -> None:
    """Python, packages and memory."""
    check_python(sys.version_info[:2])
    check_packages(PACKAGES)
    check_memory(devices, available_megabytes())


def check_python(version: tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        raise DemoFailed(
            f"covey demo needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer, and this is "
            f"{'.'.join(map(str, version))}; make an environment with a newer one; nothing was started"
        )


def check_packages(names: tuple[str, ...]) -> None:
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"covey demo needs {', '.join(missing)}; run: pip install 'covey[server,audit]'; nothing was started"
        )


def check_memory(devices: int, available: int | None) -> None:
    """Where the system does not say what is available, it is tried."""
    needed = _SERVER_MEGABYTES + _DEVICE_MEGABYTES * devices
    if available is not None and available < needed:
        fewer = max(0, available - _SERVER_MEGABYTES) // _DEVICE_MEGABYTES
        remedy = f"--devices {fewer} would fit" if fewer >= 6 else "close other programs"
        raise DemoFailed(
            f"{devices} devices and a server need about {needed:,} MB of memory, and {available:,} MB are available; "
            f"{remedy}; nothing was started"
        )


def available_megabytes() -> int | None:
    """What the system could give to new processes, as Linux tells it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("MemAvailable:")]
    return int(found[0].split()[1]) // 1024 if found else None


def prepare(folder: Path) -> None:
    """An empty folder of the demo's own; what an earlier demo left in it is replaced, and nothing else is."""
    if folder.exists():
        if not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MARKER).is_file()):
            raise DemoFailed(
                f"{folder} holds something that the demo did not make; name another folder with --out; nothing was "
                "started"
            )
        _refuse_running(folder / "federation")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    (folder / _MARKER).touch()


def _refuse_running(directory: Path) -> None:
    from server_kit.daemon.federation_home import Home

    if (directory / "server.toml").is_file() and Home.open(directory).is_running():
        raise DemoFailed(
            f"a server still runs in {directory}; stop it, or name another folder with --out; nothing was started"
        )
