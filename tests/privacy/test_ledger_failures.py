"""A disk that is full or fails to sync stops the ledger; it books nothing then and goes on once the disk is well."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.privacy.ledger_helpers import filled
from tests.small_disk import run_mounted, run_on_small_disk

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
MODULE = "tests.privacy.ledger_on_bad_disk"


def run(*command, **environment):
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


def test_full_disk_books_nothing_and_is_survived(tmp_path):
    run_on_small_disk(tmp_path, "600k", [sys.executable, "-m", MODULE, "full", str(tmp_path)])


READ = (
    "import sys; from pathlib import Path; from privacy.ledger import Ledger; Ledger.read(Path(sys.argv[1])).verify()"
)


def test_ledger_on_a_medium_that_cannot_be_written_is_still_read(tmp_path, ledger_keys):
    """As a privacy officer receives it: an image, mounted read-only."""
    filled(tmp_path, ledger_keys, 9)
    place = shlex.quote(str(tmp_path))
    mounted = f"mount --bind {place} {place} && mount -o remount,ro,bind {place} && ! touch {place}/new 2>/dev/null"
    run_mounted(
        mounted, [sys.executable, "-c", READ, str(tmp_path)], "a read-only medium can only be made as root on Linux"
    )


def test_file_size_limit_books_nothing_and_is_survived(tmp_path):
    finished = run(sys.executable, "-m", MODULE, "limited", tmp_path)
    assert finished.returncode == 0, finished.stderr


@pytest.fixture
def failing_sync(tmp_path):
    """A library that makes fsync and fdatasync of a process fail at will."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("failing syncs need a C compiler and LD_PRELOAD")
    library, source = tmp_path / "failing_sync.so", ROOT / "tests/privacy/failing_sync.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def test_failed_sync_books_nothing_and_stops_the_ledger(tmp_path, failing_sync):
    switch = tmp_path / "fail"
    preloaded = {"LD_PRELOAD": str(failing_sync), "FAIL_SYNC": str(switch)}
    finished = run(sys.executable, "-m", MODULE, "unsynced", tmp_path, switch, **preloaded)
    assert finished.returncode == 0, finished.stderr


def test_failing_sync_really_reaches_sqlite(tmp_path, failing_sync):
    """The broken twin: a database that does not sync at commit notices nothing."""
    switch = tmp_path / "fail"
    switch.touch()
    commit = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA synchronous = ' + sys.argv[2]); "
        "c.execute('CREATE TABLE t (x)'); c.execute('INSERT INTO t VALUES (1)'); c.commit()"
    )
    preloaded = {"LD_PRELOAD": str(failing_sync), "FAIL_SYNC": str(switch)}
    ended = {
        level: run(sys.executable, "-c", commit, tmp_path / f"{level}.db", level, **preloaded).returncode
        for level in ("FULL", "OFF")
    }
    assert ended == {"FULL": 1, "OFF": 0}
