"""One gRPC connection under one certificate, probed before it is opened, and what its failures mean."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from device_sdk.wire.codec import decode
from device_sdk.wire.errors import (
    Cancelled,
    ConnectionLost,
    DeadlinePassed,
    MalformedMessage,
    Refused,
    ServerBusy,
    TooLarge,
    WireError,
    WrongVersion,
)
from device_sdk.wire.messages import Error, ErrorCode
from device_sdk.wire.services import ENROLMENT, ERROR_METADATA, FEDERATION, KEEPALIVE_PATIENCE, MESSAGE_LIMITS, path
from device_sdk.wire.trust import Credentials, Probe

if TYPE_CHECKING:
    from device_sdk.wire.cancelling import Deadline, Stop
    from device_sdk.wire.invitation import Address


def secure_channel(address: Address, credentials: Any, keepalive_seconds: float) -> Any:
    """A gRPC channel with our limits; it neither retries by itself nor shares connections with others."""
    options = [
        *MESSAGE_LIMITS,
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.keepalive_time_ms", int(keepalive_seconds * 1000)),
        *KEEPALIVE_PATIENCE,
        ("grpc.http2.max_pings_without_data", 0),
    ]
    return grpc.secure_channel(str(address), credentials, options)


def enrolment_call(address: Address, authority: bytes, request: bytes, timeout_seconds: float | None) -> Any:
    """A running call of the enrolment service, and the channel to close after it."""
    roots = ssl.DER_cert_to_PEM_cert(authority).encode()
    channel = secure_channel(address, grpc.ssl_channel_credentials(roots), keepalive_seconds=30.0)
    call = channel.unary_unary(path(ENROLMENT, "Enrol")).future(request, timeout=timeout_seconds)
    return channel, call


class Connection:
    """An open connection. It closes when it is retired and the last call on it has ended."""

    def __init__(self, address: Address, credentials: Credentials, keepalive_seconds: float) -> None:
        self.credentials = credentials
        shown = (credentials.private_key, ssl.DER_cert_to_PEM_cert(credentials.certificate).encode())
        roots = ssl.DER_cert_to_PEM_cert(credentials.authority).encode()
        self._channel = secure_channel(address, grpc.ssl_channel_credentials(roots, *shown), keepalive_seconds)
        self.attend = self._channel.stream_stream(path(FEDERATION, "Attend"))
        self.download = self._channel.unary_stream(path(FEDERATION, "Download"))
        self.upload = self._channel.stream_stream(path(FEDERATION, "Upload"))
        self.fetch = self._channel.unary_unary(path(FEDERATION, "Fetch"))
        self.deliver = self._channel.unary_unary(path(FEDERATION, "Deliver"))
        self.renew = self._channel.unary_unary(path(FEDERATION, "Renew"))
        self._mutex = threading.Lock()
        self._users = 0
        self._retired = False

    @classmethod
    def probed(
        cls, address: Address, credentials: Credentials, keepalive_seconds: float, connect_seconds: float, stop: Stop
    ) -> Connection:
        """A connection to a server that has proved who it is."""
        Probe(credentials).check(address, connect_seconds, stop)
        return cls(address, credentials, keepalive_seconds)

    def ask(self, method: Any, request: bytes, stop: Stop, deadline: Deadline, most_seconds: float) -> bytes:
        """The answer in a call of one message each way; ends when cancelled, late, or after `most_seconds`."""
        left = deadline.left_seconds()
        try:
            # Waiting in this thread takes half of what a future takes, but leaves only the connection to be cut.
            with stop.calling(self.close):
                return bytes(method(request, timeout=most_seconds if left is None else min(left, most_seconds)))
        except grpc.RpcError as error:
            raise translated(error, stop, deadline) from error
        except ValueError as error:
            deadline.check(stop)
            raise ConnectionLost("this connection was closed; try again later") from error

    def enter(self) -> None:
        with self._mutex:
            self._users += 1

    def leave(self) -> None:
        with self._mutex:
            self._users -= 1
        self._close_if_unused()

    @contextmanager
    def used(self) -> Iterator[Connection]:
        self.enter()
        try:
            yield self
        finally:
            self.leave()

    def retire(self) -> None:
        """Take no new calls; those under way may end."""
        with self._mutex:
            self._retired = True
        self._close_if_unused()

    def close(self) -> None:
        """End everything under way."""
        self._channel.close()

    def _close_if_unused(self) -> None:
        with self._mutex:
            unused = self._retired and self._users == 0
        if unused:
            self._channel.close()


def translated(error: grpc.RpcError, stop: Stop, deadline: Deadline) -> WireError:
    """What a failed call means to us."""
    if stop.is_set():
        return Cancelled("this call was cancelled; it can be taken up again")
    refusal = _refusal_in(error)
    if refusal is not None:
        return refusal
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and deadline.left_seconds() == 0.0:
        return DeadlinePassed("the deadline of this call has passed; it can be taken up again")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return WrongVersion("the server speaks another version of the protocol; update the older of the two")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC has one code for both; only its words tell them apart.
        if "larger than max" in (error.details() or ""):
            return TooLarge("the other end sent or refused a message beyond the limit; it was not used")
        return ServerBusy("the server is busy with others; try again in a while; nothing was done")
    return ConnectionLost(f"the connection to the server broke ({code.name.lower()}); try again later")


def outlived(error: WireError, *, renewed: bool) -> WireError:
    """A connection that has outlived its certificate is merely lost if the device has a newer one to show."""
    if renewed and isinstance(error, Refused) and error.code is ErrorCode.CERTIFICATE_EXPIRED:
        return ConnectionLost("this connection has outlived its certificate; connect again with the new one")
    return error


def _refusal_in(error: grpc.RpcError) -> WireError | None:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            try:
                told = decode(Error, value)
            except MalformedMessage as malformed:
                return malformed
            if told.code is ErrorCode.WRONG_VERSION:
                return WrongVersion(told.message)
            return Refused(told.code, told.message, told.retry_after_seconds)
    return None
