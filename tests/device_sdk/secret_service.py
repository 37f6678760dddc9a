"""A real key store of the system for one test: gnome-keyring behind a message bus of its own, unlocked."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("dbus-daemon", "gnome-keyring-daemon")
_START_SECONDS = 20.0


def need_programs() -> None:
    """Skip, aloud, where a part of it is not installed."""
    pytest.importorskip("keyring", reason="the real key store needs the packages keyring and secretstorage")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"the real key store needs {', '.join(missing)}; on Debian: apt install gnome-keyring dbus")


@contextmanager
def secret_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While the block runs, this process and its children find a Secret Service that is nobody else's."""
    run, bus = folder / "run", folder / "bus"
    run.mkdir(mode=0o700, parents=True)
    for name, value in {"HOME": folder, "XDG_RUNTIME_DIR": run, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={bus}"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    keys = ["gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets"]
    with _child(["dbus-daemon", "--session", "--nofork", f"--address=unix:path={bus}"]) as daemon:
        _wait_for(bus.exists, daemon)
        with _child(keys) as keeper:
            assert keeper.stdin is not None
            keeper.stdin.write(b"what a login would give")
            keeper.stdin.close()
            _wait_for(_answers, keeper)
            yield


def _answers() -> bool:
    """Whether somebody keeps secrets here; asked anew, since `keyring` chooses its backend once."""
    import keyring.core

    keyring.core.init_backend()
    return type(keyring.get_keyring()).__module__ == "keyring.backends.SecretService"


@contextmanager
def _child(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for(ready: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not ready():
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        assert time.monotonic() < until, f"{process.args!r} did not begin"
        time.sleep(0.02)
