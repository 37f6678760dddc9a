"""A worker that writes checkpoints, for `tests.device_sdk.mortal` to kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from privacy.durable import make_directory, sync
from server_kit.checkpoints import Checkpoints, of_cohort, pack, unpack
from server_kit.checkpoints.history import Found
from server_kit.errors import NoCheckpoint
from server_kit.store.blobs import LocalBlobs

LINE = of_cohort("0")
VALUES = 50_000


def checkpoints_in(home: Path, small_bytes: int = 0) -> Checkpoints:
    return Checkpoints(LocalBlobs(home / "blobs"), home / "scratch", small_bytes=small_bytes)


def state(number: int) -> dict[str, Any]:
    return {"round": number, "model": torch.full((VALUES,), float(number))}


def told(home: Path) -> int:
    """The last checkpoint that its worker was told is there."""
    path = home / "told"
    return int(path.read_text().split()[-1]) if path.exists() else 0


def tell(home: Path, number: int) -> None:
    with (home / "told").open("a") as file:
        file.write(f"{number}\n")
        file.flush()
        os.fsync(file.fileno())


def newest(home: Path) -> Found | None:
    try:
        return checkpoints_in(home).latest(LINE)
    except NoCheckpoint:
        return None


def works(home: Path, small_bytes: int = 0) -> None:
    """Take up the newest and write three more."""
    checkpoints = checkpoints_in(home, small_bytes)
    found = newest(home)
    start = 0 if found is None else int(unpack(found.packed)["round"])
    tell(home, start)
    for number in range(start + 1, start + 4):
        name = checkpoints.write(LINE, number, pack(state(number)))
        tell(home, number)
        checkpoints.prune(LINE, {name})


def works_in_memory(home: Path) -> None:
    """The same with checkpoints that need no draft."""
    works(home, small_bytes=1 << 20)


class InPlace(LocalBlobs):
    """Writes where the file is to be."""

    def put(self, name: str, content: Any) -> None:
        target, whole = self.path(name), Path(content).read_bytes()
        make_directory(target.parent)
        with target.open("wb") as file:
            file.write(whole[: len(whole) // 2])
            file.flush()
            sync(file.fileno())
            file.write(whole[len(whole) // 2 :])


def works_in_place(home: Path) -> None:
    checkpoints = Checkpoints(InPlace(home / "blobs"), home / "scratch", small_bytes=0)
    for number in range(1, 4):
        checkpoints.write(LINE, number, pack(state(number)))
        tell(home, number)
