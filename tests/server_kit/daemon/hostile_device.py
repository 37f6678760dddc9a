"""A device that misbehaves: it holds real credentials, or none, and says what it likes."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc

from device_sdk.wire import codec
from device_sdk.wire.channel import Credentials
from device_sdk.wire.invitation import Address
from device_sdk.wire.messages import Error, ErrorCode
from device_sdk.wire.services import ERROR_METADATA, FEDERATION, path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


class HostileDevice:
    """Speaks raw bytes to a gateway over gRPC. Use it as a context manager."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        roots, shown = (
            ssl.DER_cert_to_PEM_cert(der).encode() for der in (credentials.authority, credentials.certificate)
        )
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        tls = grpc.ssl_channel_credentials(roots, credentials.private_key, shown)
        self.channel = grpc.secure_channel(str(address), tls, options)

    def __enter__(self) -> HostileDevice:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.channel.close()

    def attend(self, bodies: Iterable[bytes], timeout_seconds: float = 20.0) -> Any:
        return self.channel.stream_stream(path(FEDERATION, "Attend"))(iter(bodies), timeout=timeout_seconds)

    def upload(self, bodies: Iterable[bytes], timeout_seconds: float = 20.0) -> Any:
        return self.channel.stream_stream(path(FEDERATION, "Upload"))(iter(bodies), timeout=timeout_seconds)

    def download(self, body: bytes) -> Any:
        return self.channel.unary_stream(path(FEDERATION, "Download"))(body, timeout=20)

    def fetch(self, body: bytes) -> bytes:
        return self.call(FEDERATION, "Fetch", body)

    def deliver(self, body: bytes) -> bytes:
        return self.call(FEDERATION, "Deliver", body)

    def renew(self, body: bytes) -> bytes:
        return self.channel.unary_unary(path(FEDERATION, "Renew"))(body, timeout=20)

    def call(self, service: str, method: str, body: bytes = b"") -> bytes:
        return self.channel.unary_unary(path(service, method))(body, timeout=20)


def refusal_of(call: Any) -> ErrorCode | grpc.StatusCode:
    """Why a call was refused: our code if there is one, else gRPC's."""
    try:
        for _ in call if isinstance(call, Iterator) else call():
            pass
    except grpc.RpcError as error:
        told = dict(error.trailing_metadata() or ()).get(ERROR_METADATA)
        return error.code() if told is None else codec.decode(Error, told).code
    raise AssertionError("the call was not refused")


def spoken_tls(
    address: Address, credentials: Credentials | None, authority: bytes, says: bytes = b"", **limits: Any
) -> bytes:
    """What a gateway answers to HTTP/2's preface after a handshake of Python's own; empty if it hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    context.set_alpn_protocols(["h2"])
    for name, value in limits.items():
        setattr(context, name, value)
    if credentials is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "shown.pem"
            file.write_bytes(ssl.DER_cert_to_PEM_cert(credentials.certificate).encode() + credentials.private_key)
            context.load_cert_chain(file)
    with (
        socket.create_connection((address.host, address.port), 10) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as wrapped,
    ):
        wrapped.sendall(PREFACE + says)
        try:
            answer = wrapped.recv(9)
            if says:
                _read_to_the_end_of_the_call(wrapped, answer)
        except (ssl.SSLError, OSError):
            return b""
        return answer


def _read_to_the_end_of_the_call(connection: ssl.SSLSocket, head: bytes) -> None:
    file = connection.makefile("rb")
    while len(head) == 9:
        file.read(int.from_bytes(head[:3]))
        if head[3] == 1 and head[4] & 1:  # headers, and the end of the stream
            return
        head = file.read(9)


def http2_call(call: str, body: bytes) -> bytes:
    """One gRPC call as HTTP/2 frames, written by hand: no gRPC library speaks TLS 1.2 on request."""
    names = {":method": "POST", ":scheme": "https", ":path": call, ":authority": "localhost"}
    names |= {"content-type": "application/grpc", "te": "trailers"}
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in names.items()
    )
    message = b"\0" + len(body).to_bytes(4) + body
    return _frame(1, 4, 1, headers) + _frame(0, 1, 1, message)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body
