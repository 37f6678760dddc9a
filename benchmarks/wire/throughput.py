"""How fast 100 MB go up and down over the wire, beside a bare gRPC stream of the same bytes over the same TLS.

    python -m benchmarks.wire.throughput [--megabytes 100] [--rounds 5]

The server runs in a process of its own. A bare stream sends the same pieces; its receiver puts them together (down) or
throws them away (up): no messages, no hash, no file, no receipt. We want at least 80 % of its speed, and peak memory
at most two chunks above the payload, in a process whose threads share one heap, as `covey device run` has it.
A "kept" stream is bare too, but its receiver hashes the bytes and, on the server, writes them to a file, as anyone
has to: what is left between it and us is the price of the protocol.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path

import grpc

from device_sdk.wire.channel import Channel, Credentials
from device_sdk.wire.messages import CHUNK_BYTES, Blob
from device_sdk.wire.one_heap import share_one_heap
from device_sdk.wire.tensors import blob_of
from privacy.keys import SigningKey
from server_kit.daemon.transport import ShownCertificate
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.memory_server import MemoryServer

ROOT = Path(__file__).parents[2]
BARE = "bare.Stream"
WARM_UP_BYTES = 8 << 20
PEAKS = 5
# gRPC as it comes: none of our own settings may slow the stream that we compare ourselves with.
DEFAULTS = [("grpc.max_receive_message_length", -1)]
KINDS = ("bare", "kept", "covey")
NAMES = tuple(f"{kind}_{way}" for way in ("down", "up") for kind in KINDS)


class Discarding:
    """A desk's `accept` that reads nothing: what a daemon does with the file is not the wire's affair."""

    def __init__(self, desk):
        self._desk = desk

    def __getattr__(self, name):
        return getattr(self._desk, name)

    def accept(self, device, header, parcel):
        parcel.read = lambda: b""
        return self._desk.accept(device, header, parcel)


def serve(megabytes):
    """The server's process: prints where it listens and who may come, then waits for its input to end."""
    payload = bytes(os.urandom(1 << 20)) * megabytes
    with tempfile.TemporaryDirectory() as folder:
        server = MemoryServer(Path(folder))
        server.gateway._transfers.__dict__["desk"] = Discarding(server.desk)
        for blob in (payload, payload[:WARM_UP_BYTES]):
            server.desk.blobs[blob_of(blob).sha256] = blob
        device = TestDevice().known_to(server)
        bare, bare_port = server.loop.run(start_bare(server, payload))
        print(json.dumps(told(server, device, bare_port, payload)), flush=True)
        sys.stdin.read()
        server.loop.run(bare.stop(0))
        server.close()


def told(server, device, bare_port, payload):
    credentials = device.credentials
    return {
        "gateway": str(server.address),
        "bare": bare_port,
        "sha256": blob_of(payload).sha256.hex(),
        "warm_up": blob_of(payload[:WARM_UP_BYTES]).sha256.hex(),
        "server": device.server,
        "certificate": credentials.certificate.hex(),
        "private_key": credentials.private_key.decode(),
        "authority": credentials.authority.hex(),
        "signing": device.signing.to_bytes().hex(),
        "ledger": device.ledger.to_bytes().hex(),
    }


async def start_bare(server, payload):
    """The same pieces with nothing around them, over the same TLS, on a port of its own."""
    view = memoryview(payload)

    async def down(request, context):
        for start in range(0, int.from_bytes(request) or len(view), CHUNK_BYTES):
            await context.write(bytes(view[start : start + CHUNK_BYTES]))

    async def up(requests, context):
        while await context.read() is not grpc.aio.EOF:
            pass
        await context.write(b"done")

    async def up_to_keep(requests, context):
        digest = hashlib.sha256()
        with tempfile.TemporaryFile() as file:
            while (body := await context.read()) is not grpc.aio.EOF:
                digest.update(body)
                file.write(body)
        await context.write(digest.digest())

    bare = grpc.aio.server(options=DEFAULTS)
    handlers = {
        "Down": grpc.unary_stream_rpc_method_handler(down),
        "Up": grpc.stream_stream_rpc_method_handler(up),
        "UpToKeep": grpc.stream_stream_rpc_method_handler(up_to_keep),
    }
    bare.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(BARE, handlers),))
    shown = ShownCertificate(server.certificate, server.authority)
    port = bare.add_secure_port("127.0.0.1:0", shown.credentials)
    await bare.start()
    return bare, port


class Client:
    """The device's side of all transfers."""

    def __init__(self, told, megabytes):
        self.told = told
        self.size = megabytes << 20
        self.blob = Blob(bytes.fromhex(told["sha256"]), self.size)
        credentials = Credentials(
            bytes.fromhex(told["certificate"]), told["private_key"].encode(), bytes.fromhex(told["authority"])
        )
        self.channel = Channel(told["gateway"], credentials)
        self.device = TestDevice(
            signing=SigningKey(bytes.fromhex(told["signing"])), ledger=SigningKey(bytes.fromhex(told["ledger"]))
        )
        self.device.server = told["server"]
        # Sequences only grow, over all processes of this run.
        self.device.sequence = time.monotonic_ns()
        pem = [ssl.DER_cert_to_PEM_cert(part).encode() for part in (credentials.authority, credentials.certificate)]
        shown = grpc.ssl_channel_credentials(pem[0], credentials.private_key, pem[1])
        self.bare = grpc.secure_channel(f"127.0.0.1:{told['bare']}", shown, DEFAULTS)

    def covey_down(self):
        assert len(self.channel.download(self.blob)) == self.size

    def bare_down(self):
        buffer, position = bytearray(self.size), 0
        for body in self.bare.unary_stream(f"/{BARE}/Down")(b""):
            buffer[position : position + len(body)] = body
            position += len(body)
        assert position == self.size
        return buffer

    def kept_down(self):
        assert hashlib.sha256(self.bare_down()).digest() == self.blob.sha256

    def covey_up(self):
        self.channel.upload(self.header, self.payload)

    def bare_up(self):
        assert list(self.bare.stream_stream(f"/{BARE}/Up")(self.pieces())) == [b"done"]

    def kept_up(self):
        assert list(self.bare.stream_stream(f"/{BARE}/UpToKeep")(self.pieces())) == [self.header.payload.sha256]

    def pieces(self):
        view = memoryview(self.payload)
        return (bytes(view[start : start + CHUNK_BYTES]) for start in range(0, self.size, CHUNK_BYTES))

    @cached_property
    def payload(self):
        return os.urandom(1 << 20) * (self.size >> 20)

    def warm_up(self, name):
        """Move a few pieces, so that the connection stands and gRPC has the memory that it keeps for any stream."""
        size, self.size = self.size, WARM_UP_BYTES
        if name == "covey_down":
            self.channel.download(Blob(bytes.fromhex(self.told["warm_up"]), self.size))
        elif name == "covey_up":
            payload = os.urandom(self.size)
            self.channel.upload(self.device.update(payload), payload)
        else:
            for _ in self.bare.unary_stream(f"/{BARE}/Down")(self.size.to_bytes(8)):
                pass
        self.size = size

    def prepare(self):
        """A release is hashed and signed when it is made, not when it is sent."""
        self.header = self.device.update(self.payload)


def measure(told, megabytes, rounds):
    """Seconds of each transfer, taken in turns."""
    client = Client(told, megabytes)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for round_number in range(rounds + 1):
        client.prepare()
        for name in NAMES:
            began = time.perf_counter()
            getattr(client, name)()
            if round_number:  # the first is for connecting and warming up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def memory(told, megabytes, name, *, one_heap):
    """How far one transfer raises this process's peak above what it held before and the payload, in chunks."""
    if one_heap:
        share_one_heap()
    client = Client(told, megabytes)
    client.warm_up(name)
    if name.endswith("up"):
        client.prepare()
    before = resident_bytes()
    getattr(client, name)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = client.size if name.endswith("down") else 0
    return (peak - before - held) / CHUNK_BYTES


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_a_process(arguments, told):
    command = [sys.executable, "-m", "benchmarks.wire.throughput", *arguments]
    finished = subprocess.run(command, input=json.dumps(told), cwd=ROOT, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(finished.stderr)
    return json.loads(finished.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one-heap", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=["serve", "measure", *NAMES])
    arguments = parser.parse_args()
    if arguments.role == "serve":
        serve(arguments.megabytes)
    elif arguments.role == "measure":
        print(json.dumps(measure(json.load(sys.stdin), arguments.megabytes, arguments.rounds)))
    elif arguments.role:
        told = json.load(sys.stdin)
        print(json.dumps(memory(told, arguments.megabytes, arguments.role, one_heap=arguments.one_heap)))
    else:
        compare(arguments.megabytes, arguments.rounds)


def compare(megabytes, rounds):
    """The table."""
    size = ["--megabytes", str(megabytes)]
    command = [sys.executable, "-m", "benchmarks.wire.throughput", "--role", "serve", *size]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        seconds = in_a_process(["--role", "measure", "--rounds", str(rounds), *size], told)
        chunks = {name: peaks(["--role", name, *size], told) for name in NAMES}
        shared = {name: peaks(["--role", name, "--one-heap", *size], told) for name in NAMES}
        server.stdin.close()
    print(f"{megabytes} MiB over mTLS on loopback, medians of {rounds} in turns")
    for way in ("down", "up"):
        for kind in KINDS:
            taken = seconds[f"{kind}_{way}"]
            bare, kept = (ratio(seconds[f"{other}_{way}"], taken) for other in ("bare", "kept"))
            print(
                f"{way:>5} {kind:>6}: {megabytes / statistics.median(taken):4.0f} MiB/s, {bare:4.0%} of bare, "
                f"{kept:4.0%} of kept; peak memory above the payload {shared[f'{kind}_{way}']} chunks with one heap, "
                f"{chunks[f'{kind}_{way}']} with glibc's own"
            )


def peaks(arguments, told):
    """The median of a few processes, with their range: heaps fill differently each time."""
    found = sorted(in_a_process(arguments, told) for _ in range(PEAKS))
    return f"{found[PEAKS // 2]:.1f} ({found[0]:.1f} to {found[-1]:.1f})"


def ratio(others, ours):
    """How fast we are beside another, both measured in turns."""
    return statistics.median(other / our for other, our in zip(others, ours, strict=True))


if __name__ == "__main__":
    main()
