"""How many devices one daemon holds, what each takes, and how many check-ins a second it accepts.

    python -m benchmarks.daemon.check_ins [--devices 2000] [--each 5] [--json]

Every device has its own certificate, connection and stream over mutual TLS; all of them live in this process. They
connect and check in, are held for a while, then check in again and again and say goodbye: a stream that has ended was
heard to its end. One device at a time is asked to train, so hardly any task is pushed meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import ssl
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc

from benchmarks.daemon.federation import Federation, heed_signals, running
from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.services import FEDERATION, path
from server_kit.daemon.register import EnrolledDevice
from server_kit.snapshots import read_snapshots
from tests.device_sdk.wire.devices import TestDevice

AT_ONCE = 50
HELD_SECONDS = 10.0
_HELLO, _CHECK_IN = codec.encode_from_device(m.Hello()), codec.encode_from_device(m.CheckIn())
_GOODBYE = codec.encode_from_device(m.Goodbye(m.GoodbyeReason.CLOSING))


def known(federation: Federation, count: int) -> tuple[bytes, list[bytes]]:
    """So many devices as if they had enrolled: the key that they share, and a certificate for each."""
    authority, tls = federation.home.authority(), TestDevice().tls
    certificates = []
    with closing(federation.home.open_store()) as store:
        for _ in range(count):
            device = TestDevice(tls=tls)
            store.register.add(EnrolledDevice(device.id, device.signing.public_key, device.ledger.public_key))
            certificates.append(device.certified_by(authority).certificate)
    return tls.pem, certificates


async def attend(address: str, credentials: Any, gate: asyncio.Semaphore) -> tuple[Any, Any]:
    """Connect, be welcomed, check in."""
    # Without a pool of its own each channel would look for a connection to share.
    channel = grpc.aio.secure_channel(address, credentials, [("grpc.use_local_subchannel_pool", 1)])
    async with gate:
        call = channel.stream_stream(path(FEDERATION, "Attend"))()
        await call.write(_HELLO)
        assert isinstance(codec.decode_from_server(await call.read()), m.Welcome)
        await call.write(_CHECK_IN)
    return channel, call


async def check_in_again(channel: Any, call: Any, times: int) -> None:
    """Check in so many times, say goodbye, and wait until the server has heard it all."""
    for _ in range(times):
        await call.write(_CHECK_IN)
    await call.write(_GOODBYE)
    while await call.read() is not grpc.aio.EOF:
        pass
    await channel.close()


async def measure(federation: Federation, devices: int, each: int) -> dict[str, float]:
    key, certificates = known(federation, devices)
    root, address = federation.home.authority().certificate_pem, str(federation.home.config.listen.gateway_address)
    shown = [
        grpc.ssl_channel_credentials(root, key, ssl.DER_cert_to_PEM_cert(certificate).encode())
        for certificate in certificates
    ]
    before, began, gate = coordinator_bytes(federation), time.perf_counter(), asyncio.Semaphore(AT_ONCE)
    calls = await asyncio.gather(*(attend(address, credentials, gate) for credentials in shown))
    connecting = time.perf_counter() - began
    await asyncio.sleep(HELD_SECONDS)
    held, after = connected(federation), coordinator_bytes(federation)
    began = time.perf_counter()
    await asyncio.gather(*(check_in_again(channel, call, each) for channel, call in calls))
    checking = time.perf_counter() - began
    return {
        "devices": devices,
        "held": held,
        "kib_each": (after - before) / devices / 1024,
        "connected_a_second": devices / connecting,
        "check_ins_a_second": devices * each / checking,
    }


def coordinator_bytes(federation: Federation) -> int:
    return int(federation.usage()["coordinator"].resident_bytes)


def connected(federation: Federation) -> float:
    """How many devices the daemon itself says are there."""
    found = {each.process: each for each in read_snapshots(federation.home.run)}
    return found["coordinator"].gauges["covey_devices_connected", ()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.check_ins", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2000)
    parser.add_argument("--each", type=int, default=5, help="how often each checks in again")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    heed_signals()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name, running(Path(name), devices=1, rounds=0) as federation:
        measured = asyncio.run(measure(federation, options.devices, options.each))
    if options.json:
        print(json.dumps(measured))
        return
    print(f"{measured['held']:.0f} of {options.devices} devices held, {measured['kib_each']:.0f} KiB each")
    print(f"{measured['connected_a_second']:.0f} a second connect, are welcomed and check in")
    print(f"{measured['check_ins_a_second']:.0f} further check-ins a second, and goodbyes")


if __name__ == "__main__":
    main()
