"""Everyone who is to be refused comes to a server's door; prints what its log says of each, as JSON.

A process of its own, because gRPC decides when it is first used what it writes to standard error.
"""

from __future__ import annotations

import json
import logging
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from device_sdk.wire.channel import enrol
from device_sdk.wire.errors import WireError
from device_sdk.wire.services import FEDERATION, path
from server_kit.daemon.authority import Authority
from server_kit.daemon.handshakes import HandshakeWatch
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.hostile_device import http2_call, spoken_tls
from tests.server_kit.daemon.memory_server import MemoryServer

LOOK_SECONDS = 0.1


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.codes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("refused"):
            self.codes.append(record.__dict__["code"])


def shown(server: MemoryServer, authority: Authority | None = None, **certificate: Any) -> Callable[[], object]:
    """A handshake with a certificate of one's own."""
    device = TestDevice().known_to(server)
    credentials = device.certified_by(authority or server.authority, **certificate)
    return lambda: spoken_tls(server.address, credentials, server.authority.certificate)


def without_certificate(server: MemoryServer) -> object:
    return spoken_tls(server.address, None, server.authority.certificate)


def with_tls_1_2(server: MemoryServer) -> object:
    credentials = TestDevice().known_to(server).credentials
    call = http2_call(path(FEDERATION, "Renew"), b"")
    oldest = ssl.TLSVersion.TLSv1_2
    return spoken_tls(server.address, credentials, server.authority.certificate, call, maximum_version=oldest)


def revoked(server: MemoryServer) -> None:
    device = TestDevice().known_to(server)
    server.register.revoke(device.id)
    with device.channel() as channel:
        channel.attend(timeout_seconds=5)


def with_a_used_invitation(server: MemoryServer) -> None:
    invitation = server.invitation()
    for device in (TestDevice(), TestDevice()):
        enrol(invitation, device.tls.request(), device.signing, device.ledger)


def codes_of(come: Callable[[], object], heard: Heard) -> list[str]:
    heard.codes.clear()
    with suppress(WireError, ssl.SSLError, OSError):
        come()
    deadline = time.monotonic() + 3
    while not heard.codes and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(3 * LOOK_SECONDS)
    return list(heard.codes)


def main() -> None:
    log, heard = logging.getLogger("covey.server"), Heard()
    log.addHandler(heard)
    log.propagate = False
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        with HandshakeWatch(Path(folder) / "native.log", LOOK_SECONDS):
            server = MemoryServer(Path(folder) / "spool")
            visitors: dict[str, Callable[[], object]] = {
                "expired": shown(server, now=now - timedelta(days=9)),
                "not yet valid": shown(server, now=now + timedelta(days=9)),
                "foreign authority": shown(server, Authority.create()),
                "no certificate": lambda: without_certificate(server),
                "TLS 1.2": lambda: with_tls_1_2(server),
                "revoked": lambda: revoked(server),
                "used invitation": lambda: with_a_used_invitation(server),
                "welcome": shown(server),
            }
            told = {name: codes_of(come, heard) for name, come in visitors.items()}
        sys.stderr.write("back again")
        sys.stderr.flush()
        told["nobody listens"] = codes_of(visitors["expired"], heard)
        server.close()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
