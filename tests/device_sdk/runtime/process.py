"""A device as a process of its own, for `test_process_kills` to kill: `python -m ... HOME SERVER ROUNDS`."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.device import Device
from device_sdk.trainers import NumpyTrainer
from tests.device_sdk.runtime.federation import BUDGET

INPUTS = np.linspace(0, 1, 600, dtype=np.float32).reshape(300, 2)
LABELS = np.arange(300) % 3


def opened(home: Path, server: str) -> Device:
    keys = {"store": "file", "file": home / "device.key"}
    settings: dict[str, Any] = {"rounds": {"most_attempts": 1000}, "schedule": {"first_seconds": 0}}
    return Device.open(home / "state", server=server, budget=BUDGET, keys=keys, **settings)


def main() -> None:
    faulthandler.dump_traceback_later(60, exit=True)  # a device that hangs says where
    home, server, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with opened(home, server) as device:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5)
        device.run(NumpyTrainer(INPUTS, LABELS), rounds=rounds, timeout_seconds=120)


if __name__ == "__main__":
    main()
