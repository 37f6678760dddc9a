"""What a thousand idle devices cost one gateway: memory for each, and how long a push to all of them takes.

    python -m benchmarks.wire.idle_devices [--devices 1000]

The gateway has a process of its own. Every device has its own certificate, its own connection over mutual TLS and
its own open stream, as it would have in the field; all of them live in one further process. No goal: the figures
are printed so that an operator can size a machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.services import FEDERATION, path
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.memory_server import MemoryServer

ROOT = Path(__file__).parents[2]
AT_ONCE = 50


def resident_kibibytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def serve(num_devices):
    """The gateway's process: tells who may come, waits until they are there, pushes to all, says what it holds."""
    with tempfile.TemporaryDirectory() as folder:
        server = MemoryServer(Path(folder))
        tls = TestDevice().tls
        devices = [TestDevice(tls=tls).known_to(server) for _ in range(num_devices)]
        told = {
            "address": str(server.address),
            "authority": server.authority.certificate_pem.decode(),
            "private_key": tls.pem.decode(),
            "certificates": [device.certified_by(server.authority).certificate.hex() for device in devices],
        }
        print(json.dumps(told), flush=True)
        before = resident_kibibytes()
        server.desk.wait_for(lambda desk: desk.story.count("check in") == num_devices, seconds=300)
        after = resident_kibibytes()
        sys.stdin.readline()
        body = m.ComeBack(60.0)
        began = time.perf_counter()
        pushed = sum(server.gateway.push(device.id, body) for device in devices)
        pushing = time.perf_counter() - began
        print(
            json.dumps({"kibibytes": (after - before) / num_devices, "pushed": pushed, "pushing_seconds": pushing}),
            flush=True,
        )
        sys.stdin.readline()
        server.close()


async def attend_all(told, tell_server):
    """The devices' process: connect all, a few at once; then wait for what is pushed, and note when it came."""
    gate = asyncio.Semaphore(AT_ONCE)
    calls = []

    async def attend(certificate):
        pem = ssl.DER_cert_to_PEM_cert(bytes.fromhex(certificate)).encode()
        shown = grpc.ssl_channel_credentials(told["authority"].encode(), told["private_key"].encode(), pem)
        # Without a pool of its own each channel would look for a connection to share.
        channel = grpc.aio.secure_channel(told["address"], shown, [("grpc.use_local_subchannel_pool", 1)])
        async with gate:
            call = channel.stream_stream(path(FEDERATION, "Attend"))()
            await call.write(codec.encode_from_device(m.Hello()))
            assert isinstance(codec.decode_from_server(await call.read()), m.Welcome)
            await call.write(codec.encode_from_device(m.CheckIn()))
        calls.append((channel, call))

    began = time.perf_counter()
    await asyncio.gather(*(attend(certificate) for certificate in told["certificates"]))
    connecting = time.perf_counter() - began
    pushed_at = time.perf_counter()
    tell_server()

    async def pushed(call):
        assert codec.decode_from_server(await call.read()) == m.ComeBack(60.0)
        return time.perf_counter() - pushed_at

    latencies = await asyncio.gather(*(pushed(call) for _, call in calls))
    await asyncio.gather(*(channel.close() for channel, _ in calls))
    return connecting, latencies


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.devices)
        return
    command = [sys.executable, "-m", "benchmarks.wire.idle_devices", "--serve", "--devices", str(arguments.devices)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        to_server, from_server = server.stdin, server.stdout
        assert to_server is not None
        assert from_server is not None

        def tell_server():
            to_server.write("\n")
            to_server.flush()

        told = json.loads(from_server.readline())
        connecting, latencies = asyncio.run(attend_all(told, tell_server))
        figures = json.loads(from_server.readline())
        tell_server()
    print(f"{arguments.devices} idle devices on one gateway, each with a connection and a stream of its own")
    print(f"memory of the gateway: {figures['kibibytes']:.0f} KiB a device")
    print(f"connecting them all: {connecting:.1f} s ({arguments.devices / connecting:.0f} handshakes a second)")
    print(
        f"pushing to {figures['pushed']} of them: {figures['pushing_seconds'] * 1000:.0f} ms in the gateway; "
        f"arrived after {statistics.median(latencies) * 1000:.0f} ms (median), {max(latencies) * 1000:.0f} ms (last)"
    )


if __name__ == "__main__":
    main()
