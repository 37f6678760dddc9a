"""A device of the SDK in a process of its own, for `mortal_device` to kill: `python -m ... HOME SERVER ROUNDS [WAY]`.

Its trainer hands in zeros, so each of its updates is the noise that it was released with: no two are the same, and one
that is lost or counted twice shows in every coordinate of the sum. What is sent is put aside first, byte for byte, so
that the sum can be foretold.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.device import Device
from device_sdk.round_record import Phase
from device_sdk.state import RoundJournal
from device_sdk.trainers.protocol import LocalUpdate
from device_sdk.wire.channel import Channel
from device_sdk.wire.messages import UploadAccepted
from privacy import PrivacyBudget

BUDGET = PrivacyBudget(epsilon=10_000, delta=1e-6)
"""It must outlast all kills."""
OPEN = "open"
DIES = "dies before it sends"
FORGETS = "forgets what it has not sent"
_LONGEST_LIFE_SECONDS = 600.0


def opened(home: Path, server: str) -> Device:
    keys = {"store": "file", "file": home / "device.key"}
    settings: dict[str, Any] = {"rounds": {"most_attempts": 1000}, "schedule": {"first_seconds": 0}}
    return Device.open(home / "state", server=server, budget=BUDGET, keys=keys, **settings)


def sent_to(home: Path) -> Path:
    """Where a device of this home puts aside what it sends."""
    return home / "sent"


def put_aside(folder: Path, *, dies: bool) -> None:
    """Keep whatever goes out, under its task and its hash, before it goes."""
    honest = Channel.upload

    def upload(self: Channel, header: Any, payload: bytes | memoryview, *how: Any, **else_: Any) -> UploadAccepted:
        name = f"{header.task} {hashlib.sha256(payload).hexdigest()}"
        draft = folder / "draft"
        draft.write_bytes(payload)
        draft.rename(folder / name)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(self, header, payload, *how, **else_)

    Channel.upload = upload  # type: ignore[method-assign]


class Idler:
    """Has nothing to learn."""

    def train(self, weights: Any, settings: Any, between_batches: Any) -> LocalUpdate:
        del settings, between_batches
        return LocalUpdate({name: np.zeros_like(part) for name, part in weights.items()})


def forget(device: Device, server: str) -> None:
    """A broken twin: what was released and not acknowledged is dropped, and drawn anew for the next task."""
    journal = RoundJournal(device._vault, device._ledger, server)
    for entry in journal.rounds():
        if entry.phase is Phase.RELEASED:
            journal.give_up(entry.task)


def main(home: Path, server: str, rounds: int, way: str = "") -> None:
    faulthandler.dump_traceback_later(_LONGEST_LIFE_SECONDS, exit=True)  # a device that hangs says where
    put_aside(sent_to(home), dies=way == DIES)
    with opened(home, server) as device:
        if way == FORGETS:
            forget(device, server)
        sys.stdout.write(f"{OPEN}\n")
        sys.stdout.flush()
        device.run(Idler(), rounds=rounds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
