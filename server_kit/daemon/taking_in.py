"""Between the event loop, where pieces of an upload arrive, and the disk, where they go."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.wire.messages import Chunk
    from server_kit.daemon.spool import Intake

_MOST_WAITING = 2


class TakingIn:
    """Hashes and writes pieces in a thread, in their order, while further ones are read. Lives on the event loop."""

    def __init__(self, intake: Intake, pool: ThreadPoolExecutor) -> None:
        self._intake, self._pool = intake, pool
        self._waiting: deque[Chunk] = deque()
        self._working: asyncio.Future[None] | None = None

    async def put(self, chunk: Chunk) -> None:
        """Take a piece; waits while too many do. Raises what went wrong with this one or any before it."""
        self._waiting.append(chunk)
        self._work_on()
        if len(self._waiting) > _MOST_WAITING:
            await self._pause()
            self._work_on()

    async def finish(self) -> None:
        """Wait until all is written."""
        while self._working is not None:
            await self._pause()
            self._work_on()

    async def stop(self) -> None:
        """As `finish`, for whoever has an error to tell already: what has arrived need not be sent again."""
        while self._working is not None:
            # However often we are cancelled: the file must not be closed under a thread that writes.
            with suppress(Exception, asyncio.CancelledError):
                await self._pause()
                self._work_on()

    def _work_on(self) -> None:
        """See that a thread works as long as there is work; its failure is raised here."""
        if self._working is not None and self._working.done():
            done, self._working = self._working, None
            done.result()
        if self._working is None and self._waiting:
            self._working = asyncio.get_running_loop().run_in_executor(self._pool, self._work)

    def _work(self) -> None:
        while self._waiting:
            self._intake.add(self._waiting.popleft())

    async def _pause(self) -> None:
        if self._working is not None:
            # Unlike awaiting it, this leaves the thread's outcome alone when we are cancelled.
            await asyncio.wait([self._working])
