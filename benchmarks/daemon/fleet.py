"""A process of devices, each the SDK's own with vault, journal and ledger on disk, and a trainer that returns at once.

What is done leaves at once (`schedule.first_seconds` 0): the rounds are measured, not the schedule that would add a
quarter of a second to each.

    python -m benchmarks.daemon.fleet FOLDER SERVER

Reads invitations and numbers of rounds; tells when all are enrolled, when one has done the first rounds, and when all
have done all.
"""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from device_sdk import Device, PrivacyBudget
from device_sdk.trainers.protocol import LocalUpdate

BUDGET = PrivacyBudget(epsilon=8, delta=1e-6)


class Idler:
    """Has nothing to learn, and calls `on_warm` when it has done so for `warm_up` rounds."""

    def __init__(self, warm_up=0, on_warm=lambda: None):
        self.rounds, self._warm_up, self._on_warm = 0, warm_up, on_warm

    def train(self, weights, settings, between_batches):
        self.rounds += 1
        if self.rounds == self._warm_up + 1:
            self._on_warm()
        return LocalUpdate({name: np.zeros_like(value) for name, value in weights.items()})


def joined(folder, server, invitation, number):
    """One device, enrolled."""
    state = folder / f"device-{number}"
    keys = {"store": "file", "file": str(folder / f"device-{number}.key")}
    device = Device.open(state, server=server, budget=BUDGET, keys=keys, schedule={"first_seconds": 0})
    device.enrol(invitation)
    return device


def main():
    logging.basicConfig(level=logging.ERROR)
    folder, server = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    given = json.loads(sys.stdin.readline())
    with ThreadPoolExecutor(8) as pool:
        numbered = enumerate(given["invitations"])
        devices = list(pool.map(lambda pair: joined(folder, server, pair[1], pair[0]), numbered))
    tell("enrolled")
    sys.stdin.readline()
    first = Idler(given["warm_up"], on_warm=lambda: tell("warm"))
    runs = [device.start(first if device is devices[0] else Idler(), rounds=given["rounds"]) for device in devices]
    for run in runs:
        run.wait()
        if run.error is not None:
            raise run.error
    assert all(run.updates_sent == given["rounds"] for run in runs)
    # Every update was booked: a ledger with fewer entries would mean that it was not on.
    assert all(device.status().ledger.sequence >= given["rounds"] for device in devices)
    tell("done")
    sys.stdin.readline()


def tell(what):
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
