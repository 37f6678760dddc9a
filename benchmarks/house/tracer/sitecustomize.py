"""Python imports this by its name in every process that has it on its path: notes which functions of ours are called.

Nothing is noted until the byte in COVEY_TRACE/on is 1. At the end of the process the calls are written to COVEY_TRACE,
one line a call: nanoseconds, thread, file, function.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGES = ("privacy", "device_sdk", "server_kit")


def _begin(folder: Path, root: str) -> None:
    with (folder / "on").open("rb") as file:
        switch = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    prefixes = tuple(f"{root}{os.sep}{package}{os.sep}" for package in _PACKAGES)
    calls: list[tuple[int, int, str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and switch[0] == 1 and frame.f_code.co_filename.startswith(prefixes):
            code = frame.f_code
            calls.append(
                (time.monotonic_ns(), threading.get_ident(), code.co_filename[len(root) + 1 :], code.co_qualname)
            )

    def write() -> None:
        sys.setprofile(None)
        if calls:
            with (folder / f"{os.getpid()}.calls").open("w") as file:
                file.writelines(f"{at} {thread} {path} {name}\n" for at, thread, path, name in calls)

    atexit.register(write)
    threading.setprofile(note)
    sys.setprofile(note)


if "COVEY_TRACE" in os.environ:
    _begin(Path(os.environ["COVEY_TRACE"]), os.environ["COVEY_TRACE_ROOT"])
