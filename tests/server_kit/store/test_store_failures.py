"""A full disk, a lost connection, a held lock: one typed error, nothing half done, and later on it goes."""

from __future__ import annotations

import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from server_kit.errors import StoreUnavailable
from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from server_kit.store.protocol import Happening
from tests.small_disk import run, run_on_small_disk

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
MODULE = "tests.server_kit.store.on_full_disk"
KEYS = StoreKeys.generate()


def test_a_full_disk_loses_nothing_and_is_survived(tmp_path):
    run_on_small_disk(tmp_path, "20m", [sys.executable, "-m", MODULE, "full", str(tmp_path)])


def test_files_that_may_not_grow_lose_nothing_and_are_survived(tmp_path):
    finished = run(sys.executable, "-m", MODULE, "limited", str(tmp_path))
    assert finished.returncode == 0, finished.stderr


def test_a_store_that_another_holds_locked_is_unavailable_and_then_goes_on(sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr("server_kit.store.sqlite.LOCK_TIMEOUT_SECONDS", 0.05)
    with closing(open_store(sqlite_url, KEYS, tmp_path / "blobs")) as store:
        other = sqlite3.connect(tmp_path / "server.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            store.note(Happening("round", 1.0))
        assert store.happenings() == []
        other.execute("ROLLBACK")
        other.close()
        store.note(Happening("round", 1.0))
        assert len(store.happenings()) == 1


def test_a_database_that_restarts_is_unavailable_and_then_goes_on(postgres, tmp_path):
    with closing(open_store(postgres.emptied(), KEYS, tmp_path / "blobs")) as store:
        store.note(Happening("before", 1.0))
        postgres.stop(signal.SIGINT)
        for deed in (store.happenings, lambda: store.note(Happening("during", 1.0))):
            with pytest.raises(StoreUnavailable, match="nothing was changed"):
                deed()
        postgres.start()
        store.note(Happening("after", 1.0))
        assert [one.kind for one in store.happenings()] == ["before", "after"]
