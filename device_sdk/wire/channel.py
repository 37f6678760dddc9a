"""A device's side of the wire: enrol once, then attend, download, upload and renew over mutual TLS.

    reply = enrol(invitation, certificate_request, signing_key, ledger_key)
    with Channel(reply.gateway, credentials, stop=stop) as channel:
        with channel.attend() as session:              # blocks, with back-off, until connected
            session.check_in(CheckIn(claim))
            message = session.receive()                # Task, Feedback, ComeBack, CohortsChanged, Goodbye
        model = channel.download(task.model.blob)      # goes on after a cut, from where it broke
        accepted = channel.upload(header, payload)     # likewise; sending twice counts once

Everything blocks and is meant for a thread; `stop.set()` from another thread ends any call with `Cancelled`, a
`timeout_seconds` with `DeadlinePassed`. `ConnectionLost` means: try again (`attend` has the back-off). `Refused`
carries the server's code. The server is trusted by its pinned authority, host name and TLS 1.3, or not at all.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from cryptography import x509

from device_sdk.wire.backoff import Backoff
from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.codec import decode, encode
from device_sdk.wire.connection import Connection, outlived
from device_sdk.wire.enrolling import enrol, requested_key
from device_sdk.wire.errors import Cancelled, ConnectionLost, Refused
from device_sdk.wire.invitation import Address
from device_sdk.wire.messages import Blob, CheckIn, ReleaseHeader, RenewalReply, RenewalRequest, UploadAccepted
from device_sdk.wire.session import Session
from device_sdk.wire.signing import Signer
from device_sdk.wire.tensors import Assembly, blob_of
from device_sdk.wire.transfer import Transfer, fetch, send
from device_sdk.wire.trust import Credentials, check_issued, device_named_in

__all__ = ["Channel", "ChannelSettings", "Credentials", "Session", "Signer", "enrol"]

T = TypeVar("T")
_LASTING_SECONDS = 10.0
"""A session that held for so long was a success; a server that drops us sooner is left alone for longer."""


@dataclass(frozen=True)
class ChannelSettings:
    """How patient a channel is."""

    first_backoff_seconds: float = 0.5
    most_backoff_seconds: float = 120.0
    connect_seconds: float = 10.0
    silence_seconds: float = 120.0
    """A transfer in which no piece moves for this long is broken; a slow link must manage one in that time."""
    keepalive_seconds: float = 60.0
    most_download_bytes: int = 1 << 32
    most_attempts: int = 5
    """A transfer that broke so often without a byte of progress is given up."""


class Channel:
    """A device's connection to its server. Safe to use from several threads."""

    def __init__(
        self,
        gateway: str,
        credentials: Credentials,
        settings: ChannelSettings | None = None,
        stop: Stop | None = None,
    ) -> None:
        self._address = Address.from_text(gateway)
        self._credentials = credentials
        self._settings = settings or ChannelSettings()
        self._stop = stop or Stop()
        self._mutex = threading.Lock()
        self._connecting = threading.Lock()
        self._connection: Connection | None = None
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._closed = False
        self._enclosed: bytes | None = None
        self._backoff = self._new_backoff()

    def attend(self, timeout_seconds: float | None = None) -> Session:
        """Open the stream; tries again with capped, jittered back-off until it stands, is refused or cancelled."""
        deadline = Deadline(timeout_seconds)
        while True:
            deadline.check(self._stop)
            try:
                return self._attempt(partial(self._open_session, deadline), deadline)
            except ConnectionLost:
                self._pause(self._backoff, deadline)
            except Refused as refusal:
                if not refusal.retry_after_seconds:
                    raise
                self._pause(self._backoff, deadline, refusal.retry_after_seconds)

    def download(self, blob: Blob, timeout_seconds: float | None = None) -> memoryview:
        """The bytes of `blob`, their size and hash checked; after a cut only what is missing is fetched."""
        enclosed = self._enclosed
        if enclosed is not None and blob_of(enclosed) == blob:
            return memoryview(enclosed)
        assembly = Assembly(blob, self._settings.most_download_bytes)
        self._transfer(lambda transfer: fetch(transfer, blob, assembly), timeout_seconds)
        return assembly.finish()

    def upload(
        self,
        header: ReleaseHeader,
        payload: bytes | memoryview,
        timeout_seconds: float | None = None,
        check_in: CheckIn | None = None,
    ) -> UploadAccepted:
        """Send a release; after a cut, in this process or another, only what is missing is sent.

        A `check_in` goes with it where it can: the answer says whether it was heard.
        """
        return self._transfer(lambda transfer: send(transfer, header, memoryview(payload), check_in), timeout_seconds)

    def renew(self, certificate_request: bytes, timeout_seconds: float = 30.0) -> RenewalReply:
        """Ask for a further certificate; the channel goes on with the present one until `use` is called."""
        deadline = Deadline(timeout_seconds)
        deadline.check(self._stop)
        request = encode(RenewalRequest(certificate_request))

        def ask(connection: Connection) -> RenewalReply:
            answer = connection.ask(connection.renew, request, self._stop, deadline, timeout_seconds)
            return decode(RenewalReply, answer)

        reply = self._attempt(ask, deadline)
        shown = self._credentials
        device = device_named_in(x509.load_der_x509_certificate(shown.certificate)) or ""
        check_issued(reply.certificate, shown.authority, requested_key(certificate_request), device)
        return reply

    def use(self, credentials: Credentials) -> None:
        """Show other credentials from the next call on. Calls under way and an open session are not disturbed."""
        with self._mutex:
            self._credentials = credentials
            before, self._connection = self._connection, None
        if before is not None:
            before.retire()

    def close(self) -> None:
        """End everything that is under way on this channel; it cannot be used again."""
        with self._mutex:
            self._closed, self._connection = True, None
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _attempt(self, work: Callable[[Connection], T], deadline: Deadline) -> T:
        """Do `work` on the present connection, or on a new one; one that fails is not used again."""
        connection = self._connected(deadline)
        try:
            with connection.used():
                return work(connection)
        except ConnectionLost:
            self._forget(connection)
            raise
        except Refused as refusal:
            error = outlived(refusal, renewed=not self._is_current(connection))
            if error is refusal:
                raise
            raise error from refusal

    def _open_session(self, deadline: Deadline, connection: Connection) -> Session:
        session = Session(connection, self._stop, self._is_current, self._session_ended, self._keep_enclosed)
        session.begin(self._patience_seconds(deadline))
        return session

    def _patience_seconds(self, deadline: Deadline) -> float:
        left, most = deadline.left_seconds(), self._settings.connect_seconds
        # A socket takes 0 for "do not wait at all".
        return most if left is None else max(0.01, min(left, most))

    def _connected(self, deadline: Deadline) -> Connection:
        """The present connection, or a new one; a thread that waits for one does not keep `use` and `close` waiting."""
        with self._connecting:
            with self._mutex:
                connection, credentials = self._connection, self._credentials
            if connection is None:
                keepalive, patience = self._settings.keepalive_seconds, self._patience_seconds(deadline)
                connection = Connection.probed(self._address, credentials, keepalive, patience, self._stop)
            return self._kept(connection)

    def _kept(self, connection: Connection) -> Connection:
        with self._mutex:
            if self._closed:
                connection.close()
                raise Cancelled("this channel was closed; open another")
            self._connections.add(connection)
            if self._is_current(connection):
                self._connection = connection
            return connection

    def _is_current(self, connection: Connection) -> bool:
        return connection.credentials is self._credentials

    def _forget(self, connection: Connection) -> None:
        with self._mutex:
            if self._connection is connection:
                self._connection = None
        connection.retire()

    def _session_ended(self, age_seconds: float) -> None:
        if age_seconds >= _LASTING_SECONDS:
            self._backoff.succeeded()

    def _keep_enclosed(self, content: bytes) -> None:
        """The last one only: its task is next."""
        self._enclosed = content

    def _transfer(self, work: Callable[[Transfer], T], timeout_seconds: float | None) -> T:
        """Do `work` in as many attempts as it takes, while each gets further than all before it."""
        deadline, backoff = Deadline(timeout_seconds), self._new_backoff()
        failures = furthest = 0
        while True:
            deadline.check(self._stop)
            transfer = Transfer(self._stop, deadline, self._settings.silence_seconds)
            try:
                return self._attempt(partial(transfer.run, work), deadline)
            except ConnectionLost:
                failures = 0 if transfer.position > furthest else failures + 1
                furthest = max(furthest, transfer.position)
                if failures >= self._settings.most_attempts:
                    raise
                self._pause(backoff, deadline)
            except Refused as refusal:
                failures += 1
                if not refusal.retry_after_seconds or failures >= self._settings.most_attempts:
                    raise
                self._pause(backoff, deadline, refusal.retry_after_seconds)

    def _pause(self, backoff: Backoff, deadline: Deadline, least_seconds: float = 0.0) -> None:
        seconds = max(least_seconds, backoff.failed())
        left = deadline.left_seconds()
        self._stop.wait(seconds if left is None else min(seconds, left))

    def _new_backoff(self) -> Backoff:
        return Backoff(self._settings.first_backoff_seconds, self._settings.most_backoff_seconds)
