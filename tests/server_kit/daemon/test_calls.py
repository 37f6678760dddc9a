"""Work in a thread is waited for, however often whoever waits is cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server_kit.daemon.calls import blocking


async def _patient_once(pool, work):
    """The broken twin: the second cancellation leaves the thread behind."""
    future = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


async def _leaves_its_thread_behind(way, cancellations) -> bool:
    let = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = asyncio.create_task(way(pool, let.wait))
        for _ in range(cancellations):
            await asyncio.sleep(0.01)
            waiting.cancel()
        await asyncio.sleep(0.01)
        left = waiting.done()
        let.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    return left


@pytest.mark.parametrize("cancellations", [1, 2, 5])
def test_cancelled_however_often_it_waits_for_its_thread(cancellations):
    assert not asyncio.run(_leaves_its_thread_behind(blocking, cancellations))


def test_one_that_is_patient_once_is_caught():
    assert asyncio.run(_leaves_its_thread_behind(_patient_once, 2))
