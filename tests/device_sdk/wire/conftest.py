"""A server on loopback for the tests of the wire."""

from __future__ import annotations

import pytest

from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.memory_server import MemoryServer


@pytest.fixture
def server(tmp_path):
    server = MemoryServer(tmp_path / "spool")
    yield server
    server.close()


@pytest.fixture
def device(server):
    return TestDevice().known_to(server)
