"""The store in PostgreSQL keeps the contract."""

from __future__ import annotations

import pytest

from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from tests.server_kit.store.contract import StoreContract

pytestmark = pytest.mark.integration


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, postgres_url, tmp_path):
        store = open_store(postgres_url, StoreKeys.generate(), tmp_path / "blobs", clock=lambda: 1000.0)
        yield store
        store.close()
