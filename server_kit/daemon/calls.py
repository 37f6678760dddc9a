"""The calls that are under way, so that each device has few of them and a revoked one has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from server_kit.daemon.doorkeeper import Identity

T = TypeVar("T")


@dataclass(eq=False)
class _Call:
    identity: Identity
    task: asyncio.Task[Any]
    refusal: Refused | None = None


class Calls:
    """What each device has under way. Lives on the event loop: not for other threads."""

    def __init__(self, most_per_device: int) -> None:
        self._most = most_per_device
        self._calls: dict[DeviceId, set[_Call]] = {}

    async def run(self, identity: Identity, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` for a device; raises the refusal if it is cut off meanwhile."""
        calls = self._calls.setdefault(identity.device, set())
        if len(calls) >= self._most:
            work.close()
            raise Refused(ErrorCode.TOO_MANY_CALLS, "this device has too many calls under way; wait for one", 1.0)
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        calls.add(call := _Call(identity, task))
        try:
            return await work
        except asyncio.CancelledError:
            if call.refusal is None:
                raise
            # Only `work` was to end: what is left of the call tells the device why.
            task.uncancel()
            raise call.refusal from None
        finally:
            calls.discard(call)
            if not calls:
                self._calls.pop(identity.device, None)

    def cut_off(self, identity: Identity, refusal: Refused) -> None:
        """End the calls made with one certificate."""
        self._end(refusal, (call for call in self._of(identity.device) if call.identity == identity))

    def cut_off_device(self, device: DeviceId, refusal: Refused) -> None:
        """End all calls of a device."""
        self._end(refusal, self._of(device))

    def identities(self) -> set[Identity]:
        """Everyone who has a call under way."""
        return {call.identity for calls in self._calls.values() for call in calls}

    async def over(self, patience_seconds: float) -> None:
        """Wait until nothing is under way any more."""
        tasks = [call.task for calls in self._calls.values() for call in calls]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_seconds)

    def _of(self, device: DeviceId) -> list[_Call]:
        return list(self._calls.get(device, ()))

    def _end(self, refusal: Refused, calls: Iterable[_Call]) -> None:
        for call in calls:
            call.refusal = refusal
            call.task.cancel()


async def blocking(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
    """The outcome of `work` in a thread. Cancelled, it still waits for the thread: nothing goes on behind our back."""
    return await _to_its_end(asyncio.get_running_loop().run_in_executor(pool, work, *arguments))


async def awaited(future: Future[T]) -> T:
    """The outcome of what another thread has begun; waited for as in `blocking`."""
    return await _to_its_end(asyncio.wrap_future(future))


async def begin_answer(context: Any) -> None:
    """Send a stream's headers. A first message cut off with its headers would make gRPC unable to refuse."""
    await _to_its_end(asyncio.ensure_future(context.send_initial_metadata(())))


async def _to_its_end(future: asyncio.Future[T]) -> T:
    """The outcome of what cannot be interrupted; whoever is cancelled meanwhile waits for its end first."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            # Cancelled again, by others who want it gone: it still cannot be.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


async def in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The outcome of a read or write, or `Refused` if the other end lets us wait too long."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise Refused(ErrorCode.TOO_SLOW, f"nothing moved for {seconds:g} seconds; this call was ended", 1.0) from error
