"""One attempt at a download or an upload, on one connection."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.chunk_bytes import encode_upload_chunk
from device_sdk.wire.codec import decode, decode_chunk, decode_upload_reply, encode, encode_delivery, encode_upload
from device_sdk.wire.connection import Connection, translated
from device_sdk.wire.errors import ConnectionLost, MalformedMessage
from device_sdk.wire.messages import (
    CHUNK_BYTES,
    Blob,
    CheckIn,
    Chunk,
    Delivery,
    DownloadRequest,
    ReleaseHeader,
    UploadAccepted,
    UploadFrom,
    UploadReply,
)
from device_sdk.wire.silence import Silence
from device_sdk.wire.tensors import Assembly

T = TypeVar("T")


class Transfer:
    """An attempt: when to give up, and how far the transfer has come, as the receiving end knows it."""

    def __init__(self, stop: Stop, deadline: Deadline, silence_seconds: float) -> None:
        self._stop, self._deadline, self._silence_seconds = stop, deadline, silence_seconds
        self._silence: Silence | None = None
        self.connection: Connection
        self.position = 0

    def run(self, work: Callable[[Transfer], T], connection: Connection) -> T:
        """Do `work` on a connection."""
        self.connection = connection
        return work(self)

    def answer(self, method: Any, request: bytes) -> bytes:
        """What the server says to one message; a piece must move within the time of a silence."""
        return self.connection.ask(method, request, self._stop, self._deadline, self._silence_seconds)

    @property
    def left_seconds(self) -> float | None:
        return self._deadline.left_seconds()

    def moved(self) -> None:
        """A piece has arrived or left."""
        if self._silence is not None:
            self._silence.heard()

    def answers(self, call: Any) -> Iterator[bytes]:
        """What the server sends in this call; ends it when cancelled, late, or when nothing moves for too long."""
        silence = self._silence = Silence(self._silence_seconds, call.cancel)
        try:
            with silence, self._stop.calling(call.cancel):
                for body in call:
                    self.moved()
                    yield body
                    del body  # or it would stay until the next has come
        except grpc.RpcError as error:
            if silence.broken and not self._stop.is_set():
                raise ConnectionLost("nothing moved for too long; the connection was given up") from error
            raise translated(error, self._stop, self._deadline) from error
        finally:
            call.cancel()


def fetch(transfer: Transfer, blob: Blob, assembly: Assembly) -> None:
    """Receive what is missing of a blob."""
    if assembly.complete:
        return
    request = encode(DownloadRequest(blob.sha256, assembly.received))
    if blob.size_bytes <= CHUNK_BYTES:
        assembly.add(decode_chunk(transfer.answer(transfer.connection.fetch, request)))
        return
    call = transfer.connection.download(request, timeout=transfer.left_seconds)
    for body in transfer.answers(call):
        assembly.add(decode_chunk(body))
        del body
        transfer.position = assembly.received
        if assembly.received == blob.size_bytes:
            return
    raise ConnectionLost("the server ended a download before its last piece; try again")


def send(
    transfer: Transfer, header: ReleaseHeader, payload: memoryview, check_in: CheckIn | None = None
) -> UploadAccepted:
    """Send a header, then what the server is missing, and wait for its acknowledgement."""
    if 0 < len(payload) <= CHUNK_BYTES:
        delivery = encode_delivery(Delivery(header, Chunk(0, payload), check_in))
        return decode(UploadAccepted, transfer.answer(transfer.connection.deliver, delivery))
    start: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    pieces = _pieces(transfer, header, payload, start)
    call = transfer.connection.upload(pieces, timeout=transfer.left_seconds)
    try:
        answers = (decode_upload_reply(body) for body in transfer.answers(call))
        first = _next(answers)
        if isinstance(first, UploadFrom):
            if first.offset > len(payload):
                raise MalformedMessage("the server claims to have more of an upload than there is; it was ended")
            transfer.position = first.offset
            start.put(first.offset)
            first = _next(answers)
        if not isinstance(first, UploadAccepted):
            raise MalformedMessage("the server asked twice where to go on; the upload was ended")
        return first
    finally:
        start.put(None)
        call.cancel()


def _pieces(
    transfer: Transfer, header: ReleaseHeader, payload: memoryview, start: queue.SimpleQueue[int | None]
) -> Iterator[bytes]:
    """What goes out. gRPC asks for the next piece when the last has left, so only a few are in memory."""
    yield encode_upload(header)
    offset = start.get()
    if offset is not None:
        for position in range(offset, len(payload), CHUNK_BYTES):
            transfer.moved()
            yield encode_upload_chunk(position, payload[position : position + CHUNK_BYTES])


def _next(answers: Iterator[UploadReply]) -> UploadReply:
    answer = next(answers, None)
    if answer is None:
        raise ConnectionLost("the server ended an upload without an answer; try again")
    return answer
