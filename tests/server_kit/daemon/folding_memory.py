"""How much memory a worker takes for one model, run as a script: `DIRECTORY NUMBERS UPDATES AGGREGATOR`.

The aggregator is JSON. Prints the peak above what the worker needs with its model in hand and nothing to do, in models.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch

from device_sdk.wire.messages import UpdateHeader
from device_sdk.wire.task_terms import mechanism_of
from privacy.receipts import Receipt
from server_kit.federation_state import Plan
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.presets import strategy
from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from server_kit.store.protocol import Arrival
from tests.server_kit.daemon.paper_server import PaperDevice, PaperServer


def memory_bytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def arrive(server: PaperServer, devices: list[PaperDevice], directory: Path) -> None:
    """Every device's update is stored as a large upload is: from a file."""
    for device in devices:
        task = device.task
        assert task is not None
        file = directory / "upload"
        width = mechanism_of(task).width_bytes
        file.write_bytes(bytes(width * server.layout.size))
        header: UpdateHeader = device.keys.update(file.read_bytes(), task.task, mechanism_of(task))
        receipt = Receipt.from_json(header.receipt)
        assert server.store.accept([Arrival(device.id, header, receipt, None, file)], server.clock()) == [True]


def main(directory: Path, numbers: int, updates: int, aggregator: str) -> None:
    torch.set_num_threads(1)
    layout = Layout((("w", (numbers,)),))
    store = open_store(f"sqlite:///{directory}/store.db", StoreKeys.generate(), directory / "bytes")
    parts = strategy("fedavg", {"aggregator": json.loads(aggregator)})
    plan = Plan(parts, LocalTask(0.1, steps=2), layout, updates, lambda _: torch.zeros(numbers))
    server = PaperServer(directory / "server", store=store, given=plan, layout=layout)
    devices = server.devices(updates)
    server.coordinator.step()
    arrive(server, devices, directory)
    worker = server.worker("0")
    record = worker.record()
    assert record is not None
    worker._state(record)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_bytes("VmRSS")
    assert worker.step()
    sys.stdout.write(f"{(memory_bytes('VmHWM') - before) / (4 * numbers)}\n")
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
