"""The open streams: one for each device that is there, with what is to be sent on it.

A device that opens a second stream has lost the first, as far as it knows; the newer one wins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from device_sdk.wire.codec import encode_from_server
from device_sdk.wire.messages import THIS_VERSION, ComeBack, Goodbye, GoodbyeReason

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ProtocolVersion, ServerMessage, Welcome

_MOST_WAITING = 32


def is_last(message: ServerMessage) -> bool:
    """Whether a stream ends with this message."""
    return isinstance(message, ComeBack | Goodbye)


class Stream:
    """What waits to be sent to one device, which said hello with a `version`. Lives on the event loop."""

    def __init__(self, version: ProtocolVersion = THIS_VERSION) -> None:
        self.version = version
        self._waiting: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self._early: list[tuple[bytes, bool]] | None = []
        self._closed = False

    def begin(self, welcome: Welcome) -> None:
        """Send the welcome, and then what was pushed before it."""
        early, self._early = self._early or [], None
        self._waiting.put_nowait((encode_from_server(welcome), False))
        for item in early:
            self._waiting.put_nowait(item)

    def put(self, message: ServerMessage) -> None:
        self.put_encoded(encode_from_server(message), is_last(message))

    def put_encoded(self, body: bytes, last: bool) -> None:
        """Send this next; nothing follows what is `last`. A device that lets too much pile up has lost the rest."""
        if self._closed:
            return
        if self._waiting.qsize() + len(self._early or ()) >= _MOST_WAITING:
            body, last = encode_from_server(Goodbye(GoodbyeReason.CLOSING)), True
        self._closed = last
        if self._early is None:
            self._waiting.put_nowait((body, last))
        else:
            self._early.append((body, last))

    async def next(self) -> tuple[bytes, bool]:
        """What to send, and whether it is the last."""
        return await self._waiting.get()


class Streams:
    """The streams of a gateway. `find` may be called from any thread, the rest from the event loop."""

    def __init__(self) -> None:
        self._open: dict[DeviceId, Stream] = {}

    def find(self, device: DeviceId) -> Stream | None:
        return self._open.get(device)

    def devices(self) -> set[DeviceId]:
        return set(self._open)

    def open(self, device: DeviceId, version: ProtocolVersion = THIS_VERSION) -> Stream:
        """A stream for a device; one that it had before is told goodbye."""
        if (before := self._open.get(device)) is not None:
            before.put(Goodbye(GoodbyeReason.REPLACED))
        stream = self._open[device] = Stream(version)
        return stream

    def close(self, device: DeviceId, stream: Stream) -> bool:
        """Forget a stream; True if it was the device's present one."""
        if self._open.get(device) is not stream:
            return False
        del self._open[device]
        return True

    def say_goodbye(self, reason: GoodbyeReason) -> None:
        """End all streams in good order."""
        for stream in self._open.values():
            stream.put(Goodbye(reason))
