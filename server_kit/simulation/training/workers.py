"""Threads that compute chunks side by side, each with memory of its own.

Torch lets go of Python's lock inside its operations, and those here take tens of microseconds, so threads
with one core each do better than torch's own threads, which would meet at the end of every small product.
They are as fast as worker processes and share memory for free (docs/decisions/0008-vectorised-training.md).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.training.workspace import Workspace

Result = TypeVar("Result")
Job = Callable[[Bench, Workspace], Result]
"""Computes something on a worker's bench; the workspace is for tensors that belong to the result."""


class Workers:
    """A fixed number of threads. They start with the first jobs and stay until `close`."""

    def __init__(self, make: Callable[[], Bench], count: int, where: torch.device | None = None) -> None:
        self._count = count
        self._benches: queue.SimpleQueue[Bench] = queue.SimpleQueue()
        for _ in range(count):
            self._benches.put(make())
        # One result for each worker, and one that the consumer is reading.
        self._results = deque(Workspace(where) for _ in range(count + 1))
        self._pool: ThreadPoolExecutor | None = None

    def results(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """The results in the order of the jobs; each may be overwritten once the next is asked for."""
        pool = self._started()
        waiting = deque(jobs)
        running: deque[tuple[Future[Result], Workspace]] = deque()
        try:
            while waiting or running:
                while waiting and self._results:
                    room = self._results.popleft()
                    running.append((pool.submit(self._run, waiting.popleft(), room), room))
                if not running:
                    raise InvalidSetting(
                        "a trainer makes one pass at a time; end or drop the other; nothing was computed"
                    )
                yield running[0][0].result()
                self._results.append(running.popleft()[1])
        finally:
            # The consumer may have left early, or a job failed: what still runs ends within one chunk.
            for future, room in running:
                if not future.cancel():
                    future.exception()
                self._results.append(room)

    def _run(self, job: Job[Result], room: Workspace) -> Result:
        bench = self._benches.get()
        try:
            return job(bench, room)
        finally:
            self._benches.put(bench)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            threads = torch.get_num_threads()
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="training", initializer=_use_one_core)
            # Nobody passes the barrier before all threads have started, and thus changed the default for everybody.
            barrier = threading.Barrier(self._count)
            for future in [self._pool.submit(barrier.wait) for _ in range(self._count)]:
                future.result()
            torch.set_num_threads(threads)
        return self._pool

    def close(self) -> None:
        """Stop the threads; what they are computing is finished first."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _use_one_core() -> None:
    torch.get_num_threads()  # a thread takes over the default at its first use, which must come before the change
    torch.set_num_threads(1)


@contextmanager
def leaving_cores_to_workers() -> Iterator[None]:
    """Inside, this thread computes on one core: torch's own threads would fight with the workers, also by waiting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
