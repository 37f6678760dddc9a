"""Pieces reach the disk in their order, few wait, and what goes wrong there is heard."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from device_sdk.wire.messages import Chunk
from server_kit.daemon.taking_in import TakingIn


class Disk:
    """An intake that takes pieces when it is let, one at a time."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.let = threading.Event()
        self.fails_at: int | None = None
        self._busy = threading.Lock()

    def add(self, chunk: Chunk) -> None:
        assert not self._busy.locked(), "two threads at once"
        with self._busy:
            assert self.let.wait(20)
            if chunk.offset == self.fails_at:
                raise OSError("the disk is full")
            self.taken.append(chunk.offset)


@pytest.fixture
def disk():
    return Disk()


def run(work) -> None:
    async def whole() -> None:
        with ThreadPoolExecutor(4) as pool:
            await asyncio.wait_for(work(pool), 30)

    asyncio.run(whole())


def test_pieces_are_written_in_their_order_by_one_thread_at_a_time(disk):
    async def work(pool):
        disk.let.set()
        taking_in = TakingIn(disk, pool)
        for offset in range(200):
            await taking_in.put(Chunk(offset, b"x"))
            if offset % 7 == 0:
                await asyncio.sleep(0.001)
        await taking_in.finish()

    run(work)
    assert disk.taken == list(range(200))


def test_a_slow_disk_makes_the_sender_wait(disk):
    async def work(pool):
        taking_in = TakingIn(disk, pool)
        accepted = 0

        async def send():
            nonlocal accepted
            for offset in range(50):
                await taking_in.put(Chunk(offset, b"x"))
                accepted += 1

        sending = asyncio.create_task(send())
        await asyncio.sleep(0.2)
        assert accepted < 6
        disk.let.set()
        await sending
        await taking_in.finish()

    run(work)
    assert disk.taken == list(range(50))


def test_a_failing_disk_is_heard_by_whoever_sends_or_ends(disk):
    async def work(pool):
        disk.let.set()
        disk.fails_at = 3
        taking_in = TakingIn(disk, pool)

        async def send():
            for offset in range(50):
                await taking_in.put(Chunk(offset, b"x"))
                await asyncio.sleep(0.001)

        with pytest.raises(OSError, match="full"):
            await send()
        await taking_in.stop()  # and whoever has heard it need not hear it again
        disk.fails_at = 60
        another = TakingIn(disk, pool)
        await another.put(Chunk(60, b"x"))
        with pytest.raises(OSError, match="full"):
            await another.finish()

    run(work)
    assert disk.taken == [0, 1, 2]


def test_what_has_arrived_is_written_before_an_upload_is_given_up(disk):
    async def work(pool):
        taking_in = TakingIn(disk, pool)
        await taking_in.put(Chunk(0, b"x"))
        await taking_in.put(Chunk(1, b"x"))
        stopping = asyncio.create_task(taking_in.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        disk.let.set()
        await stopping
        assert disk.taken == [0, 1]

    run(work)


def test_an_upload_that_several_want_gone_is_written_to_its_end_all_the_same(disk):
    async def work(pool):
        taking_in = TakingIn(disk, pool)
        await taking_in.put(Chunk(0, b"x"))
        stopping = asyncio.create_task(taking_in.stop())
        for _ in range(3):
            await asyncio.sleep(0.01)
            stopping.cancel()
        assert not stopping.done()
        disk.let.set()
        await stopping
        assert disk.taken == [0]

    run(work)
