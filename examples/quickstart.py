"""Server and devices in one program, to see every call once: four devices learn to read digits.

    python examples/quickstart.py [FOLDER]

Everything is real (daemon, mutual TLS, ledgers) but for one thing: real devices are not threads of one program.
What is left in FOLDER can be looked into with `covey server status` and `covey privacy status`.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from device_sdk import Device, PrivacyBudget
from device_sdk.trainers import NumpyTrainer
from privacy import PrivacyUnit
from server_kit import Server

DEVICES, ROUNDS = 4, 3

SETTINGS = """
[federation]
name = "quickstart"
preset = "fedavg"
model = "server_kit.models:digits_softmax"
participants = {devices}
rounds = {rounds}

[training]
learning_rate = 2.0
steps = 10

[privacy]
noise_multiplier = "1.5"
sampling_rate = "1/10"
expected_batch_size = "32"

[listen]
enrolment = "127.0.0.1:{ports[0]}"
gateway = "127.0.0.1:{ports[1]}"
status = "127.0.0.1:{ports[2]}"
"""


def free_ports(count: int) -> list[int]:
    """A server of your own has ports of your choice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run(folder: Path) -> None:
    """From an empty folder to a trained model."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target
    server = Server.create(folder / "federation", SETTINGS.format(devices=DEVICES, rounds=ROUNDS, ports=free_ports(3)))
    with server:
        print("the server runs")
        devices = []
        for number, invitation in enumerate(server.invite(DEVICES)):
            state = folder / f"device-{number}"
            device = Device.open(
                state,
                server=str(server.config.listen.enrolment_address),
                budget=PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD),
                keys={"store": "file", "file": str(state.with_suffix(".key"))},
            )
            device.enrol(invitation)
            devices.append(device)
        print(f"{len(devices)} devices are enrolled")
        shares = np.array_split(np.arange(len(labels) - 500), DEVICES)
        trainers = [NumpyTrainer(images[share], labels[share]) for share in shares]
        runs = [device.start(trainer, rounds=ROUNDS) for device, trainer in zip(devices, trainers, strict=True)]
        for each in runs:
            each.wait()
        for device in devices:
            device.close()
    trained = server.export("0", folder / "model.safetensors")
    weights = load_file(folder / "model.safetensors")
    right = NumpyTrainer(images[-500:], labels[-500:]).evaluate(weights).correct_share
    print(f"model {trained.version} reads {right:.0%} of the digits that no device has")
    print(f"every release stands in {folder}/device-*/: covey privacy status {folder}/device-0")


if __name__ == "__main__":
    run(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="covey-quickstart-")))
