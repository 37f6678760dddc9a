"""A round without training over mutual TLS: check in, push with the model, upload, acknowledge, many devices at once.

    python -m benchmarks.wire.rounds [--devices 10] [--rounds 20]

All devices live in one process and use the SDK's own channel. Signatures and receipts are checked; the desk behind the
gateway keeps everything in memory. The daemon has to do all rounds with a durable store in 50 ms for 10 devices and
300 ms for 100 (median); this is the wire's share.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from device_sdk.wire.channel import Channel, Credentials
from device_sdk.wire.messages import CheckIn, ModelReference, Task
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from privacy.keys import SigningKey
from tests.device_sdk.wire import examples
from tests.device_sdk.wire.devices import QUICK, TestDevice
from tests.server_kit.daemon.memory_server import MemoryServer

ROOT = Path(__file__).parents[2]
NUM_WEIGHTS = 7850  # softmax regression on 28 x 28 pixels


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(num_devices, rounds):
    """The server's process: tells who may come, and when they are there; then it holds the rounds."""
    payload = model_bytes({"w": np.zeros(NUM_WEIGHTS, np.float32)})
    specs = model_specs({"w": np.zeros(NUM_WEIGHTS, np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        server = MemoryServer(Path(folder))
        server.desk.blobs[blob_of(payload).sha256] = payload
        devices = [TestDevice().known_to(server) for _ in range(num_devices)]
        print(json.dumps([told(device) for device in devices]), flush=True)
        wait_for_number(server.desk, "check_ins", num_devices)
        model = ModelReference(1, blob_of(payload), specs)
        print(flush=True)
        seconds, began_processor = [], processor_seconds()
        for number in range(rounds):
            began = time.perf_counter()
            for device in devices:
                task = replace(examples.TASK, task=f"{number}", device=device.id, model=model)
                assert server.gateway.push(device.id, task)
            wait_for_number(server.desk, "accepted", (number + 1) * num_devices)
            seconds.append(time.perf_counter() - began)
            wait_for_number(server.desk, "check_ins", (number + 2) * num_devices)
        spent = (processor_seconds() - began_processor) / rounds / num_devices
        print(json.dumps({"seconds": seconds, "processor_seconds": spent}), flush=True)
        sys.stdin.readline()
        server.close()


def wait_for_number(desk, what, number):
    desk.wait_for(lambda desk: len(getattr(desk, what)) == number, seconds=120)


def told(device):
    return {
        "gateway": device.gateway,
        "server": device.server,
        "certificate": device.credentials.certificate.hex(),
        "private_key": device.credentials.private_key.decode(),
        "authority": device.credentials.authority.hex(),
        "signing": device.signing.to_bytes().hex(),
        "ledger": device.ledger.to_bytes().hex(),
    }


def take_part(told, rounds):
    """One device."""
    signing, ledger = (SigningKey(bytes.fromhex(told[name])) for name in ("signing", "ledger"))
    device = TestDevice(signing=signing, ledger=ledger, server=told["server"])
    credentials = Credentials(
        bytes.fromhex(told["certificate"]), told["private_key"].encode(), bytes.fromhex(told["authority"])
    )
    with Channel(told["gateway"], credentials, QUICK) as channel, channel.attend() as session:
        session.check_in(CheckIn())
        for _ in range(rounds):
            update = os.urandom(3 * NUM_WEIGHTS)
            task = session.receive(120)
            assert isinstance(task, Task)
            channel.download(task.model.blob)
            channel.upload(device.update(update, task.task), update)
            session.check_in(CheckIn())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.devices, arguments.rounds)
        return
    size = ["--devices", str(arguments.devices), "--rounds", str(arguments.rounds)]
    command = [sys.executable, "-m", "benchmarks.wire.rounds", "--serve", *size]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        devices = json.loads(server.stdout.readline())
        threads = [threading.Thread(target=take_part, args=(each, arguments.rounds)) for each in devices]
        for thread in threads:
            thread.start()
        server.stdout.readline()  # all have checked in
        began = processor_seconds()
        figures = json.loads(server.stdout.readline())
        of_devices = (processor_seconds() - began) / arguments.rounds / arguments.devices
        for thread in threads:
            thread.join()
        server.stdin.close()
    milliseconds = sorted(second * 1000 for second in figures["seconds"])
    print(
        f"{arguments.devices} devices, {arguments.rounds} rounds without training: median "
        f"{statistics.median(milliseconds):.0f} ms, best {milliseconds[0]:.0f} ms; the gateway's process takes "
        f"{figures['processor_seconds'] * 1000:.1f} ms of processor time a device and round, the devices' "
        f"{of_devices * 1000:.1f} ms"
    )


if __name__ == "__main__":
    main()
