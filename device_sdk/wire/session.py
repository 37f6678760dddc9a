"""One open stream of a device: what it says goes out at once, what the server says waits until it is asked for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import grpc

from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.codec import decode_with_enclosed, encode_from_device
from device_sdk.wire.connection import Connection, outlived, translated
from device_sdk.wire.errors import ConnectionLost, DeadlinePassed, MalformedMessage, WireError
from device_sdk.wire.mailbox import Mailbox
from device_sdk.wire.messages import CheckIn, ComeBack, Decline, Goodbye, GoodbyeReason, Hello, Welcome

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceMessage, ServerMessage

_MOST_WAITING = 64
_GOODBYE_SECONDS = 5.0


class Session:
    """Ends with `close`, with the server's Goodbye or ComeBack, or with an error from `receive`."""

    welcome: Welcome

    def __init__(
        self,
        connection: Connection,
        stop: Stop,
        is_current: Callable[[Connection], bool],
        ended: Callable[[float], None],
        enclosed: Callable[[bytes], None],
    ) -> None:
        self._connection, self._stop, self._is_current = connection, stop, is_current
        self._ended, self._enclosed = ended, enclosed
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._incoming: Mailbox[ServerMessage] = Mailbox(_MOST_WAITING)
        self._closed = threading.Event()
        self._over = threading.Event()
        self._opened_at = time.monotonic()
        connection.enter()
        self._call = connection.attend(iter(self._outgoing.get, None))
        threading.Thread(target=self._read, name="covey-session", daemon=True).start()

    def begin(self, timeout_seconds: float) -> None:
        """Say hello and wait for the welcome; without one the session is closed."""
        try:
            # Whether or not the server has refused us already: `receive` says why.
            self._outgoing.put(encode_from_device(Hello()))
            first = self.receive(timeout_seconds)
            if not isinstance(first, Welcome):
                raise MalformedMessage("the server did not begin with a welcome; the session was closed")
            self.welcome = first
        except DeadlinePassed as error:
            self._call.cancel()
            raise ConnectionLost("the server did not answer our hello; try again later") from error
        except WireError:
            self._call.cancel()
            raise

    @property
    def outdated(self) -> bool:
        """Whether the channel has newer credentials than this session was opened with; attend anew when idle."""
        return not self._is_current(self._connection)

    def check_in(self, check_in: CheckIn) -> None:
        """Ask for a task."""
        self._send(check_in)

    def decline(self, decline: Decline) -> None:
        """Say that a task will not be done."""
        self._send(decline)

    def receive(self, timeout_seconds: float | None = None) -> ServerMessage:
        """The next message; wakes when it arrives. `DeadlinePassed` leaves the session as it is."""
        with self._stop.calling(self._call.cancel):
            return self._incoming.get(timeout_seconds)

    def close(self, reason: GoodbyeReason = GoodbyeReason.CLOSING) -> None:
        """Say goodbye and end the stream; never fails. What was said before has reached the server, if it is there."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._incoming.abandon()
        self._outgoing.put(encode_from_device(Goodbye(reason)))
        self._outgoing.put(None)
        # The server ends the stream when it has read our goodbye; one that does not is left.
        with self._stop.calling(self._call.cancel):
            self._over.wait(_GOODBYE_SECONDS)
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _send(self, message: DeviceMessage) -> None:
        if self._closed.is_set():
            raise ConnectionLost("this session is closed; attend again")
        self._outgoing.put(encode_from_device(message))

    def _read(self) -> None:
        """In a thread of its own, because gRPC cannot be asked for a message only for a while."""
        try:
            for message in self._messages():
                self._incoming.put(message)
                if isinstance(message, Goodbye | ComeBack):
                    break
            self._incoming.end(ConnectionLost("the server has ended this session; attend again"))
        except grpc.RpcError as error:
            self._incoming.end(outlived(translated(error, self._stop, Deadline()), renewed=self.outdated))
        except WireError as error:
            self._incoming.end(error)
        finally:
            self._closed.set()
            self._outgoing.put(None)
            self._call.cancel()
            self._connection.leave()
            self._over.set()
            self._ended(time.monotonic() - self._opened_at)

    def _messages(self) -> Iterator[ServerMessage]:
        body: Any
        for body in self._call:
            message, enclosed = decode_with_enclosed(body)
            if enclosed:
                self._enclosed(enclosed)
            if message is not None:
                yield message
