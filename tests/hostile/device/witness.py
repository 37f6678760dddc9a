"""What a server sees of one device: every message in its order, with its kind and its size, and when it came.

A `Witness` stands at the desk behind a real gateway. Two devices that differ in their data alone must look the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from device_sdk.device import Device
from device_sdk.wire.codec import encode
from device_sdk.wire.messages import ComeBack, ServerMessage, SummaryHeader
from tests.device_sdk.runtime.asking import Asking
from tests.device_sdk.runtime.federation import Federation, Weights, no_weights, started

Sight = tuple[str, ...]
_PATIENCE_SECONDS = 30.0


class Witness:
    """Writes down what reaches the desk of a federation."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.asking = federation, Asking(federation, [])
        self.seen: list[Sight] = []
        self.times: list[float] = []
        self.ended_by: BaseException | None = None
        desk = federation.server.desk
        asked = desk.answer

        def answer(device: str, check_in: Any) -> ServerMessage | None:
            # Whoever has done all rounds waits for more: being sent away would end the stream before we have looked.
            said = asked(device, check_in)
            return None if isinstance(said, ComeBack) else said

        desk.answer = answer
        for name in ("welcome", "check_in", "decline", "gone", "blob", "announce", "accept"):
            setattr(desk, name, self._watched(name, getattr(desk, name)))

    def _watched(self, name: str, honest: Any) -> Any:
        def watched(device: str, *about: Any, **more: Any) -> Any:
            self._write(name, *about[:1], **more)
            return honest(device, *about, **more)

        return watched

    def _write(self, name: str, about: Any = None, **more: Any) -> None:
        sight: Sight = (name, *(f"{key}={value}" for key, value in more.items()))
        if name == "decline":
            sight = (name, about.reason.name)
        elif name in {"announce", "accept"}:
            # What was said of whom, how long the header is and how long the payload.
            what = about.mechanism if isinstance(about, SummaryHeader) else "update"
            sight = (name, what, f"{len(encode(about))} bytes", f"{about.payload.size_bytes} bytes")
        self.seen.append(sight)
        self.times.append(time.monotonic())

    def num(self, *names: str) -> int:
        return sum(sight[0] in names for sight in self.seen)

    def sees(self, device: Device, trainer: Any, answers: int) -> list[Sight]:
        """All that is to be seen of a device until it has answered so often, and asks for more, or is gone."""
        run = device.start(trainer)
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until and not run.wait(0.01):
            if self.num("accept", "decline") >= answers and self.num("check_in") > len(self.federation.tasks):
                break
        still_there = not run.wait(0)
        seen = [*self.seen, ("still there",) if still_there else ("gone by itself",)]
        assert run.stop(20)
        self.ended_by = run.error
        return seen


@contextmanager
def witnessed(home: Path, weights: Weights | None = None, **settings: Any) -> Iterator[Witness]:
    """A federation with somebody who writes down what it sees."""
    home.mkdir()
    federation = started(home, weights or no_weights(2, 3), **settings)
    try:
        yield Witness(federation)
    finally:
        federation.server.close()
