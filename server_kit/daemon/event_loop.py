"""One thread with an event loop in it: a thousand idle devices cost it a thousand small tasks, not threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class EventLoop:
    """Runs coroutines for callers in other threads. Close it after everything that runs on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._mutex = threading.Lock()
        self._wanted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._thread = threading.Thread(target=self._work, name="covey-event-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = 60.0) -> T:
        """The outcome of `work`, which runs on the loop; not to be called from the loop itself."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_seconds)

    def soon(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have `work` done on the loop, in the order of asking; all that is asked for in a row wakes it once."""
        with self._mutex:
            self._wanted.append((work, arguments))
            if len(self._wanted) > 1:
                return
        self.loop.call_soon_threadsafe(self._begin_wanted)

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _begin_wanted(self) -> None:
        with self._mutex:
            wanted, self._wanted = self._wanted, []
        for work, arguments in wanted:
            self.loop.call_soon(work, *arguments)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
