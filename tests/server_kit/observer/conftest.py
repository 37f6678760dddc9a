"""A port that nobody listens on."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
