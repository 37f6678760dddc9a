"""Connections that say nothing close nobody out of the observer's port, and do not stay."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from server_kit.daemon.federation_home import Home
from server_kit.dashboard.stream import MOST_STREAMS
from server_kit.metrics import Meter
from server_kit.observer.patience import MOST_OF_A_NETWORK, REQUEST_SECONDS
from tests.server_kit.dashboard.conftest import free_port, observed
from tests.server_kit.dashboard.entering import bearer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Home]:
    home = Home.create(
        tmp_path_factory.mktemp("idle") / "federation", f"[listen]\nstatus = '127.0.0.1:{free_port()}'\n"
    )
    meters = [Meter("supervisor"), Meter("coordinator")]
    with observed(home), ExitStack() as stack:
        for meter in meters:
            stack.enter_context(meter.publishing(home.run))
        yield home


@contextmanager
def connections(home: Home, count: int, says: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        address = ("127.0.0.1", home.config.listen.status_address.port)
        held = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(count)]
        for each in held:
            each.sendall(says)
        yield held


def answer(home: Home, path: str = "/healthz") -> int:
    with connections(home, 1, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as (asking,):
        return status(asking)


def status(connection: socket.socket) -> int:
    """Of the answer; 0 if there is none."""
    connection.settimeout(10)
    try:
        return int(connection.recv(64)[9:12] or 0)
    except OSError:
        return 0


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("says", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_health_is_told_while_others_hold_connections(home, says):
    with connections(home, 3 * MOST_OF_A_NETWORK, says):
        assert [answer(home) for _ in range(5)] == [200] * 5


def test_an_address_holds_few(home):
    with connections(home, 2 * MOST_OF_A_NETWORK) as held:
        time.sleep(0.5)
        assert sum(not is_closed(each) for each in held) <= MOST_OF_A_NETWORK


@pytest.mark.parametrize("says", [b"", b"GET /healthz HT"])
def test_one_that_brings_no_request_is_closed(home, says):
    with connections(home, 2, says) as held:
        time.sleep(1.0)
        assert not any(map(is_closed, held))
        time.sleep(REQUEST_SECONDS)
        assert all(map(is_closed, held))


def test_no_more_streams_begin_than_are_allowed(home):
    token = json.dumps(bearer(home)["Authorization"])[1:-1]
    says = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n".encode()
    with connections(home, MOST_STREAMS + 8, says) as held:
        statuses = [status(each) for each in held]
        assert (statuses.count(200), statuses.count(503)) == (MOST_STREAMS, 8)
        assert answer(home) == 200
        assert not is_closed(held[statuses.index(200)]), "a stream is no idle connection"


def test_a_stranger_gets_no_stream_at_all(home):
    assert answer(home, "/api/events") == 401
