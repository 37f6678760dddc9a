"""Peers that take a place and say nothing: calls without a message, connections without a call, sockets without TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from device_sdk.wire.channel import Credentials
from device_sdk.wire.invitation import Address
from device_sdk.wire.services import path

CALLS_ON_A_CONNECTION = 16


@contextmanager
def silent_calls(
    address: Address, authority: bytes, call: tuple[str, str], count: int, credentials: Credentials | None = None
) -> Iterator[list[Any]]:
    """Calls whose headers are sent and whose message never is, 16 on each connection."""
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with ExitStack() as stack:
        stack.callback(over.set)
        calls = []
        for number in range(count):
            if number % CALLS_ON_A_CONNECTION == 0:
                channel = connection(address, authority, credentials)
                stack.callback(channel.close)
            calls.append(channel.stream_unary(path(*call)).future(never()))
        yield calls


def connection(address: Address, authority: bytes, credentials: Credentials | None = None) -> Any:
    """One of its own, which no other channel of this process shares."""
    shown = () if credentials is None else (credentials.private_key, _pem(credentials.certificate))
    tls = grpc.ssl_channel_credentials(_pem(authority), *shown)
    return grpc.secure_channel(f"localhost:{address.port}", tls, [("grpc.use_local_subchannel_pool", 1)])


@contextmanager
def silent_sockets(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Connections that do not even begin a handshake."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((address.host, address.port), 10)) for _ in range(count)]


@contextmanager
def idle_connections(address: Address, authority: bytes, count: int) -> Iterator[list[ssl.SSLSocket]]:
    """Connections with their handshake done, and no call."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    context.set_alpn_protocols(["h2"])
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            plain = stack.enter_context(socket.create_connection((address.host, address.port), 10))
            held.append(stack.enter_context(context.wrap_socket(plain, server_hostname="localhost")))
        yield held


def over(calls: list[Any]) -> int:
    """How many of them the server has ended."""
    return sum(call.done() for call in calls)


def attempted(work: Callable[[], object], times: int, threads: int) -> None:
    """Do it so many times, some at once."""
    lefts = iter(range(times))
    mutex = threading.Lock()

    def go_on() -> None:
        while True:
            with mutex:
                if next(lefts, None) is None:
                    return
            work()

    workers = [threading.Thread(target=go_on) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _pem(certificate: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(certificate).encode()
