"""A server on loopback for the tests of the daemon."""

from __future__ import annotations

import pytest

from server_kit.daemon.gateway import GatewaySettings
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.memory_server import MemoryServer

IMPATIENT = GatewaySettings(most_upload_bytes=8 << 20, silence_seconds=1.0, sweep_seconds=0.1)


@pytest.fixture
def server(tmp_path):
    server = MemoryServer(tmp_path / "spool", IMPATIENT)
    yield server
    server.close()


@pytest.fixture
def device(server):
    return TestDevice().known_to(server)
