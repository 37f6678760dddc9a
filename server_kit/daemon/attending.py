"""One device's stream, from its hello to its goodbye."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from device_sdk.wire.codec import decode_from_device
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import CheckIn, Decline, DeviceId, ErrorCode, Goodbye, GoodbyeReason, Hello
from server_kit.daemon.calls import begin_answer, blocking, in_time
from server_kit.daemon.refusals import log
from server_kit.daemon.streams import Stream, Streams, is_last
from server_kit.token_bucket import TokenBuckets

if TYPE_CHECKING:
    from server_kit.daemon.desk import Attendance, Prompt
    from server_kit.daemon.enclosures import Enclosures


@dataclass(frozen=True)
class Attending:
    """Lets devices attend: passes what they say to the desk and what is pushed to them."""

    desk: Attendance
    enclosures: Enclosures
    pool: ThreadPoolExecutor
    silence_seconds: float
    messages_at_once: int
    messages_a_second: float
    prompt: Prompt | None = None
    streams: Streams = field(default_factory=Streams)
    _endings: dict[DeviceId, asyncio.Future[None]] = field(default_factory=dict)
    _said: TokenBuckets = field(init=False)
    """By device, not by stream: whoever opens another has not been quieter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_said", TokenBuckets(self.messages_at_once, self.messages_a_second))

    async def attend(self, device: DeviceId, context: Any) -> None:
        """Serve one stream until either end closes it."""
        hello = decode_from_device(await self._first(context))
        if not isinstance(hello, Hello):
            raise Refused(ErrorCode.OUT_OF_ORDER, "a stream begins with a hello; this one did not")
        self._count(device)
        stream, heard = self.streams.open(device, hello.version), _Heard()
        try:
            # The desk hears of the end of a device's last stream before it hears of the next.
            if (ending := self._endings.get(device)) is not None:
                await asyncio.wait([ending])
            stream.begin(await blocking(self.pool, self.desk.welcome, device))
            await begin_answer(context)
            await _first_of(self._listen(device, context, stream, heard), self._speak(context, stream))
        finally:
            if self.streams.close(device, stream):
                self._end(device, heard)

    async def _first(self, context: Any) -> bytes:
        body = await in_time(context.read(), self.silence_seconds)
        if body is grpc.aio.EOF:
            raise Refused(ErrorCode.OUT_OF_ORDER, "a stream begins with a hello; this one ended")
        return bytes(body)

    async def _listen(self, device: DeviceId, context: Any, stream: Stream, heard: _Heard) -> None:
        while (body := await context.read()) is not grpc.aio.EOF:
            self._count(device)
            match decode_from_device(body):
                case CheckIn() as check_in if self.prompt is not None and self.prompt.waits(device, check_in):
                    pass
                case CheckIn() as check_in:
                    answer = await blocking(self.pool, self._answer, device, check_in)
                    if answer is not None:
                        stream.put_encoded(*answer)
                case Decline() as decline:
                    await blocking(self.pool, self.desk.decline, device, decline)
                case Goodbye(reason):
                    heard.leaving = reason is GoodbyeReason.LEAVING
                    return
                case Hello():
                    raise Refused(ErrorCode.OUT_OF_ORDER, "a stream has one hello; this was the second")
                case None:
                    pass  # of a newer version; it can do without an answer

    def _count(self, device: DeviceId) -> None:
        if not self._said.take(device):
            raise Refused(ErrorCode.TOO_MANY_CALLS, "this device says too much at once; come back later", 60.0)

    def _answer(self, device: DeviceId, check_in: CheckIn) -> tuple[bytes, bool] | None:
        answer = self.desk.check_in(device, check_in)
        return None if answer is None else (self.enclosures.encoded(device, answer), is_last(answer))

    async def _speak(self, context: Any, stream: Stream) -> None:
        last = False
        while not last:
            body, last = await stream.next()
            await in_time(context.write(body), self.silence_seconds)

    def _end(self, device: DeviceId, heard: _Heard) -> None:
        def gone() -> None:
            try:
                self.desk.gone(device, leaving=heard.leaving)
            except Exception:
                log.exception("failed to note that a device has gone", extra={"device": device})

        self._endings[device] = ending = asyncio.get_running_loop().run_in_executor(self.pool, gone)
        ending.add_done_callback(lambda _: self._endings.pop(device, None))


@dataclass
class _Heard:
    """What a device has said of itself."""

    leaving: bool = False


async def _first_of(*works: Any) -> None:
    """Do all, until the first ends or fails; its failure is ours, and the others are given up."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
