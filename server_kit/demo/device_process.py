"""The process of one device: `python -m server_kit.demo.device_process RECORDS STATE --lifeline FD`.

It is what an app would be: it has records, enrols once, tells how often it has which label, and takes part until it is
told to stop. Where to enrol comes as JSON on standard input, since an invitation is a secret; what it is called at the
server goes to a file beside its state. Its answers leave on the schedule that every device has by default.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from device_sdk import Device
from device_sdk.events import show_events
from device_sdk.trainers import NumpyTrainer
from privacy.budget import PrivacyBudget, PrivacyUnit
from server_kit.daemon.lifeline import end_with
from server_kit.demo.data import LABELS, Records

_PATIENCE_SECONDS = 120.0


def name_file(state: Path) -> Path:
    """Where a device's name at the server is written."""
    return state.with_suffix(".name")


def take_part(records: Records, state: Path, asked: dict[str, str]) -> None:
    """Be a device, until stopped."""
    budget = PrivacyBudget(
        float(asked["epsilon"]), float(asked["delta"]), PrivacyUnit.RECORD, pure_epsilon=float(asked["pure_epsilon"])
    )
    keys = {"store": "file", "file": str(state.with_suffix(".key"))}
    with Device.open(state, server=asked["server"], budget=budget, keys=keys) as device:
        device.enrol(asked["invitation"], timeout_seconds=_PATIENCE_SECONDS)
        name_file(state).write_text(device.status().device or "", encoding="ascii")
        device.share_label_histogram(
            records.labels, num_labels=LABELS, epsilon=asked["histogram_epsilon"], timeout_seconds=_PATIENCE_SECONDS
        )
        device.run(NumpyTrainer(records.images, records.labels))


def main() -> int:
    """Until SIGTERM, or until whoever started it is gone."""
    parser = argparse.ArgumentParser(description="Started by covey demo; not for people.")
    parser.add_argument("records", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("--lifeline", type=int, required=True)
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    end_with(given.lifeline)
    show_events(sys.stderr)
    try:
        asked = json.loads(sys.stdin.readline() or "null")
        if asked is not None:
            take_part(Records.load(given.records), given.state, asked)
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
