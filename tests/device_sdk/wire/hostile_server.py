"""A server that misbehaves on purpose: below TLS, in the handshake, and in every call.

`HostileServer` holds a real certificate and answers each call with what a test gives it; `lying_in_wait` listens
without gRPC, for what goes wrong before a call is made.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.invitation import Address, Invitation
from device_sdk.wire.services import ENROLMENT, FEDERATION
from server_kit.daemon.authority import Authority, ServerCertificate

Answer = Callable[[Iterator[bytes], Any], Iterable[bytes]]
FEDERATION_CALLS = ("Attend", "Download", "Upload", "Fetch", "Deliver", "Renew")
WELCOME = codec.encode_from_server(m.Welcome(m.Cohorts(("0",))))


class Cut(Exception):
    """Raised by an answer to break the call off in the middle, as a lost connection would."""


def saying(*bodies: bytes, then: Callable[[], None] | None = None) -> Answer:
    """An answer that says this whatever it hears."""

    def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from bodies
        if then is not None:
            then()

    return answer


def cut() -> None:
    raise Cut


class HostileServer:
    """A real certificate, real gRPC, and answers of one's own. Use it as a context manager."""

    def __init__(self, authority: Authority, certificate: ServerCertificate | None = None) -> None:
        self.authority = authority
        self.certificate = certificate or authority.issue_server(["127.0.0.1"])
        self.answers: dict[str, Answer] = {}
        self.heard: list[tuple[str, bytes]] = []
        self.over = threading.Event()
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.server(ThreadPoolExecutor(8), options=options)
        for service, methods in {FEDERATION: FEDERATION_CALLS, ENROLMENT: ("Enrol",)}.items():
            handlers = {name: grpc.stream_stream_rpc_method_handler(self._handler(name)) for name in methods}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        pair = (self.certificate.private_key, self.certificate.certificate)
        self.address = Address(
            "127.0.0.1", self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        )
        self._server.start()

    def invitation(self) -> Invitation:
        return Invitation(self.address, self.authority.fingerprint, b"\x0f" * 32)

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.over.set()
        self._server.stop(0).wait()

    def _handler(self, name: str) -> Answer:
        def handle(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            try:
                yield from self.answers[name](self._noted(name, requests), context)
            except Cut:
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

        return handle

    def _noted(self, name: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        for body in requests:
            self.heard.append((name, body))
            yield body


@contextmanager
def lying_in_wait(welcome: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A port whose every connection is given to `welcome`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_served, args=(connection, welcome), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            # Closing alone does not wake a thread in `accept`.
            listener.shutdown(socket.SHUT_RDWR)


def _served(connection: socket.socket, welcome: Callable[[socket.socket], None]) -> None:
    with connection, suppress(OSError):
        welcome(connection)


def tls_1_2_only(certificate: ServerCertificate) -> Callable[[socket.socket], None]:
    """A genuine server of the past."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.pem"
        file.write_bytes(certificate.certificate + certificate.private_key)
        context.load_cert_chain(file)

    def welcome(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(100)

    return welcome


def silent(connection: socket.socket) -> None:
    """Takes a connection and says nothing: the loris that never ends its sentence."""
    while connection.recv(1000):
        pass


def babbling(connection: socket.socket) -> None:
    """Speaks another language."""
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.recv(1000)


def hanging_up(connection: socket.socket) -> None:
    """Closes at once."""
