"""The store in SQLite keeps the contract."""

from __future__ import annotations

import pytest

from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from tests.server_kit.store.contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, sqlite_url, tmp_path):
        store = open_store(sqlite_url, StoreKeys.generate(), tmp_path / "blobs", clock=lambda: 1000.0)
        yield store
        store.close()
