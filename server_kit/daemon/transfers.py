"""Models to devices and releases from them: in pieces, checked as they come, taken up again after a cut."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import grpc

from device_sdk.wire import codec
from device_sdk.wire.chunk_bytes import encode_chunk
from device_sdk.wire.errors import PayloadMismatch, Refused
from device_sdk.wire.messages import CHUNK_BYTES, Chunk, DownloadRequest, ErrorCode, UploadFrom
from device_sdk.wire.signing import check_release
from privacy.errors import ReceiptRefused
from privacy.receipts import Refusal
from server_kit.daemon.calls import awaited, begin_answer, blocking, in_time
from server_kit.daemon.refusals import REFUSALS
from server_kit.daemon.release_receipts import receipt_in
from server_kit.daemon.spool import Parcel
from server_kit.daemon.taking_in import TakingIn

if TYPE_CHECKING:
    from device_sdk.wire.messages import Delivery, DeviceId, ReleaseHeader, UploadAccepted, UploadReply
    from server_kit.daemon.desk import Desk, Prompt
    from server_kit.daemon.register import EnrolledDevice
    from server_kit.daemon.spool import Intake, Spool

_SMALL_BYTES = 1 << 16
"""What has no more is checked in less time than a thread takes to wake."""


@dataclass(frozen=True)
class Transfers:
    """Moves bytes between devices and the desk."""

    desk: Desk
    spool: Spool
    pool: ThreadPoolExecutor
    silence_seconds: float
    most_upload_bytes: int
    prompt: Prompt | None = None
    _under_way: dict[DeviceId, asyncio.Task[Parcel]] = field(default_factory=dict)

    async def download(self, device: DeviceId, body: bytes, context: Any) -> None:
        """Send a blob from an offset on."""
        request = codec.decode(DownloadRequest, body)
        view = await self._blob(device, request)
        await begin_answer(context)
        for start in range(request.offset, len(view), CHUNK_BYTES):
            await in_time(context.write(encode_chunk(start, view[start : start + CHUNK_BYTES])), self.silence_seconds)

    async def fetch(self, device: DeviceId, body: bytes) -> bytes:
        """One piece of a blob; a small one has no more."""
        request = codec.decode(DownloadRequest, body)
        view = await self._blob(device, request)
        if request.offset >= len(view):
            raise Refused(ErrorCode.OUT_OF_ORDER, "this model ends before the piece that was asked for")
        return encode_chunk(request.offset, view[request.offset : request.offset + CHUNK_BYTES])

    async def deliver(self, enrolled: EnrolledDevice, body: bytes) -> bytes:
        """Take in a release of one piece."""
        delivery = codec.decode_delivery(body)
        accepted: UploadAccepted | None = None
        if self.prompt is not None and len(delivery.chunk.data) <= _SMALL_BYTES:
            accepted = await self._take_promptly(self.prompt, enrolled, delivery)
        if accepted is None:
            accepted = await blocking(self.pool, self._take, enrolled, delivery)
        # Only now: until its update is stored the device has a task, and may have no other. And once for each update:
        # what is said on a stream is limited, and what is sent again is not.
        if delivery.check_in is not None and self.prompt is not None and not accepted.repeated:
            accepted = replace(accepted, checked_in=self.prompt.waits(enrolled.device, delivery.check_in))
        return codec.encode(accepted)

    async def _take_promptly(
        self, prompt: Prompt, enrolled: EnrolledDevice, delivery: Delivery
    ) -> UploadAccepted | None:
        known = self._announce(enrolled, delivery.header)
        if known is not None:
            return known
        answer, storing = prompt.begin_accept(enrolled.device, delivery.header, _whole(delivery))
        return answer if storing is None or await awaited(storing) else None

    def _take(self, enrolled: EnrolledDevice, delivery: Delivery) -> UploadAccepted:
        known = self._announce(enrolled, delivery.header)
        return known or self.desk.accept(enrolled.device, delivery.header, _whole(delivery))

    async def _blob(self, device: DeviceId, request: DownloadRequest) -> memoryview:
        content = await blocking(self.pool, self.desk.blob, device, request.sha256)
        if content is None:
            raise Refused(ErrorCode.NOT_FOUND, "there is no such model, or it is not for this device")
        return memoryview(content)

    async def upload(self, enrolled: EnrolledDevice, context: Any) -> None:
        """Take in a release: header, the missing bytes, acknowledgement."""
        header = await self._header(context)
        accepted = await blocking(self.pool, self._announce, enrolled, header)
        await begin_answer(context)
        if accepted is None:
            parcel = await self._alone(enrolled.device, header, context)
            accepted = await blocking(self.pool, self._accept, enrolled.device, header, parcel)
        await self._reply(context, accepted)

    def _announce(self, enrolled: EnrolledDevice, header: ReleaseHeader) -> UploadAccepted | None:
        """The header alone decides whether bytes are taken at all; the receipt's signatures are the desk's affair."""
        if header.payload.size_bytes > self.most_upload_bytes:
            raise Refused(
                ErrorCode.TOO_LARGE,
                f"an upload has at most {self.most_upload_bytes} bytes and this one declares more; none were taken",
            )
        check_release(header, enrolled.device, enrolled.signing_key)
        receipt = receipt_in(header.receipt)
        declared = (receipt.device_key, receipt.payload_hash, receipt.sequence, receipt.head)
        if declared != (enrolled.ledger_key, header.payload.sha256.hex(), header.sequence, header.ledger_head):
            raise ReceiptRefused("this receipt is for another release; it was not counted", Refusal.OTHER_PAYLOAD)
        return self.desk.announce(enrolled.device, header)

    async def _alone(self, device: DeviceId, header: ReleaseHeader, context: Any) -> Parcel:
        """Receive the bytes. A device uploads one thing at a time, so an earlier attempt has lost its wire."""
        while (earlier := self._under_way.get(device)) is not None and not earlier.done():
            earlier.cancel()
            await asyncio.wait([earlier])
        receiving = self._under_way[device] = asyncio.create_task(self._receive(device, header, context))
        try:
            return await receiving
        except asyncio.CancelledError:
            if not _only_within(receiving):
                raise
            raise Refused(ErrorCode.OUT_OF_ORDER, "a later upload of this device has taken over", 1.0) from None
        finally:
            if self._under_way.get(device) is receiving:
                del self._under_way[device]

    async def _receive(self, device: DeviceId, header: ReleaseHeader, context: Any) -> Parcel:
        intake = self.spool.intake(device, header.payload)
        try:
            await blocking(self.pool, intake.open)
            await self._reply(context, UploadFrom(intake.received))
            await self._take_in(intake, header.payload.size_bytes, context)
            return await blocking(self.pool, intake.finish)
        finally:
            intake.close()

    async def _take_in(self, intake: Intake, size_bytes: int, context: Any) -> None:
        """Read the missing pieces, each while those before it are hashed and written."""
        position, taking_in = intake.received, TakingIn(intake, self.pool)
        try:
            while position < size_bytes:
                chunk = await self._chunk(context)
                position += len(chunk.data)
                await taking_in.put(chunk)
            await taking_in.finish()
        finally:
            await taking_in.stop()

    def _accept(self, device: DeviceId, header: ReleaseHeader, parcel: Parcel) -> UploadAccepted:
        try:
            accepted = self.desk.accept(device, header, parcel)
        except REFUSALS:
            parcel.discard()
            raise
        # After any other failure the bytes stay in the spool, and the next attempt need not send them.
        parcel.discard()
        return accepted

    async def _header(self, context: Any) -> ReleaseHeader:
        header = codec.decode_upload(await self._read(context))
        if isinstance(header, Chunk):
            raise Refused(ErrorCode.OUT_OF_ORDER, "an upload begins with a header; this one did not")
        return header

    async def _chunk(self, context: Any) -> Chunk:
        chunk = codec.decode_upload(await self._read(context))
        if not isinstance(chunk, Chunk):
            raise Refused(ErrorCode.OUT_OF_ORDER, "an upload has one header; this was the second")
        return chunk

    async def _read(self, context: Any) -> bytes:
        body = await in_time(context.read(), self.silence_seconds)
        if body is grpc.aio.EOF:
            raise Refused(
                ErrorCode.OUT_OF_ORDER, "this upload ended before its last piece; it can be taken up again", 1.0
            )
        return bytes(body)

    async def _reply(self, context: Any, reply: UploadReply) -> None:
        await in_time(context.write(codec.encode_upload_reply(reply)), self.silence_seconds)


def _whole(delivery: Delivery) -> Parcel:
    """The bytes of a release that came in one piece, if they are those that were announced."""
    header, piece = delivery.header, delivery.chunk
    if piece.offset or len(piece.data) != header.payload.size_bytes:
        raise Refused(ErrorCode.OUT_OF_ORDER, "a delivery holds all of its release and no more; it was not used")
    if hashlib.sha256(piece.data).digest() != header.payload.sha256:
        raise PayloadMismatch("the bytes of this upload are not those that were announced; they were thrown away")
    return Parcel(header.payload, memoryview(piece.data))


def _only_within(task: asyncio.Task[Any]) -> bool:
    """Whether a task that we wait for was cancelled, and not we ourselves."""
    current = asyncio.current_task()
    return task.cancelled() and current is not None and not current.cancelling()
