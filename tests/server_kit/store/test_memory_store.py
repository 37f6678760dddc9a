"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from server_kit.store.memory import MemoryStore
from tests.server_kit.store.contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MemoryStore(clock=lambda: 1000.0)
