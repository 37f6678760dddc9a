"""The believable federation, its observer in this process or in one of its own, and a browser to look with."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server_kit.daemon.federation_home import Home
from server_kit.observer import create_app
from server_kit.observer.store_reader import StoreReader
from tests.architecture.repository import ROOT
from tests.server_kit.dashboard.believable import believable, running
from tests.server_kit.dashboard.entering import TokenShown

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Home]:
    made = believable(tmp_path_factory.mktemp("dashboard") / "federation", free_port())
    with running(made):
        yield made


@pytest.fixture
def app(home):
    reader = StoreReader(home)
    yield TokenShown(create_app(home, reader), home)
    reader.close()


@pytest.fixture(scope="module")
def address(home) -> Iterator[str]:
    with observed(home) as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser():
    """A real one, driven by Playwright; nothing is downloaded."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"the dashboard was NOT looked at: none of {', '.join(BROWSERS)} is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="the dashboard was NOT looked at: no playwright")
    with playwright.sync_playwright() as driver:
        # Without its sandbox, because tests may run as root in a container; it opens nothing but our page.
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    """Where screenshots go: COVEY_SCREENSHOTS, or pytest's own folder."""
    chosen = os.environ.get("COVEY_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def observed(home: Home) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The observer as a process; where it is."""
    command = [sys.executable, "-m", "server_kit.observer", str(home.directory)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{home.config.listen.status_address.port}"
            await_answer(f"{url}/static/app.js")
            yield url, process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def await_answer(url: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except urllib.error.URLError:
            time.sleep(0.1)
    pytest.fail("the observer never answered")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
