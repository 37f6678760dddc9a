"""The calls that are under way, so that each device or address has few of them and a revoked device has none."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import grpc

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode

T = TypeVar("T")
Caller = TypeVar("Caller", bound=Hashable)


@dataclass(eq=False)
class _Call(Generic[Caller]):
    caller: Caller
    task: asyncio.Task[Any]
    heard: bool = False
    """Whether it has brought a message. One that has not is the first to make way."""
    refusal: Refused | None = None


class Calls(Generic[Caller]):
    """What each peer has under way, counted before it has said anything. Lives on the event loop, not in threads.

    A caller that is at its limit gets in only if one of its calls has said nothing yet: the oldest of those is ended.
    So calls that never say anything cannot keep out those that do, not even those of the same address.
    """

    def __init__(self, most_per_peer: int, peer_of: Callable[[Caller], str], most: float = math.inf) -> None:
        self._most_per_peer, self._peer_of, self._most = most_per_peer, peer_of, most
        self._calls: dict[str, dict[_Call[Caller], None]] = {}
        """By peer, the oldest first."""
        self._by_task: dict[asyncio.Task[Any], _Call[Caller]] = {}

    async def run(self, caller: Caller, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` for a caller; raises the refusal if it is cut off meanwhile."""
        try:
            self._make_room(self._peer_of(caller))
        except Refused:
            work.close()
            raise
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        call = self._by_task[task] = _Call(caller, task)
        calls = self._calls.setdefault(self._peer_of(caller), {})
        calls[call] = None
        try:
            return await work
        except asyncio.CancelledError:
            if call.refusal is None:
                raise
            # Only `work` was to end: what is left of the call tells the device why.
            task.uncancel()
            raise call.refusal from None
        finally:
            del self._by_task[task]
            del calls[call]
            if not calls:
                self._calls.pop(self._peer_of(caller), None)

    def hear(self, *, heard: bool = True) -> None:
        """The call of this task has brought its message; or it counts again as one that has nothing to say."""
        if (call := self._by_task.get(cast("asyncio.Task[Any]", asyncio.current_task()))) is not None:
            call.heard = heard

    def cut_off(self, caller: Caller, refusal: Refused) -> None:
        """End the calls made by one caller, that is with one certificate."""
        self._end(refusal, (call for call in self._of(self._peer_of(caller)) if call.caller == caller))

    def cut_off_peer(self, peer: str, refusal: Refused) -> None:
        """End all calls of a peer, whatever certificate they came with."""
        self._end(refusal, self._of(peer))

    def callers(self) -> set[Caller]:
        """Everyone who has a call under way."""
        return {call.caller for call in self._by_task.values()}

    async def over(self, patience_seconds: float) -> None:
        """Wait until nothing is under way any more."""
        if tasks := list(self._by_task):
            await asyncio.wait(tasks, timeout=patience_seconds)

    def _make_room(self, peer: str) -> None:
        if len(self._staying(peer)) >= self._most_per_peer:
            self._end_oldest_silent(peer)
        elif len(self._by_task) >= self._most:
            # Where all together are too many, whoever holds most makes way first.
            self._end_oldest_silent(max(self._calls, key=lambda each: len(self._silent(each))))

    def _end_oldest_silent(self, peer: str) -> None:
        silent = self._silent(peer)
        if not silent:
            raise too_many_calls()
        self._end(too_many_calls(), silent[:1])

    def _silent(self, peer: str) -> list[_Call[Caller]]:
        return [call for call in self._staying(peer) if not call.heard]

    def _staying(self, peer: str) -> list[_Call[Caller]]:
        """Those that were not told to end."""
        return [call for call in self._of(peer) if call.refusal is None]

    def _of(self, peer: str) -> list[_Call[Caller]]:
        return list(self._calls.get(peer, ()))

    def _end(self, refusal: Refused, calls: Iterable[_Call[Caller]]) -> None:
        for call in calls:
            call.refusal = refusal
            call.task.cancel()


class Listening:
    """A call's context whose first message has a deadline; with it, the call counts as one that was heard."""

    def __init__(self, context: Any, calls: Calls[Any], seconds: float) -> None:
        self._context, self._calls, self._seconds = context, calls, seconds
        self._heard = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """The next message, or gRPC's EOF."""
        if self._heard:
            return await self._context.read()
        body = await in_time(self._context.read(), self._seconds)
        self._heard = True
        self._calls.hear()
        return body

    async def only_message(self) -> bytes:
        """The message of a call that has one."""
        body = await self.read()
        if body is grpc.aio.EOF:
            raise Refused(ErrorCode.OUT_OF_ORDER, "this call ended without its message; nothing was done")
        return bytes(body)


def too_many_calls() -> Refused:
    return Refused(ErrorCode.TOO_MANY_CALLS, "this device has too many calls under way; wait for one", 1.0)


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
