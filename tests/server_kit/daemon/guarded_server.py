"""A federation of one cohort behind the real gateway, for devices that try what they should not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.wire.invitation import Address
from device_sdk.wire.messages import Delivery, GridEncoding, Question, ServerMessage, Task, UpdateHeader
from device_sdk.wire.signing import signed
from device_sdk.wire.task_terms import mechanism_of
from device_sdk.wire.tensors import chunks
from privacy.packing import pack_array
from server_kit.daemon.authority import Authority, ServerCertificate
from server_kit.daemon.event_loop import EventLoop
from server_kit.daemon.gateway import Gateway, GatewaySettings
from server_kit.daemon.refusal_counts import RefusalCounts
from server_kit.daemon.spool import Spool
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.hostile_device import HostileDevice
from tests.server_kit.daemon.memory_server import HOSTS
from tests.server_kit.daemon.paper_server import LAYOUT, SERVER, PaperServer

SETTINGS = GatewaySettings(
    most_upload_bytes=1 << 20, messages_at_once=20, messages_a_second=1.0, silence_seconds=2.0, sweep_seconds=0.05
)


class GuardedServer(PaperServer):
    """Use it as a context manager. Devices come in over mutual TLS; the clock stands still."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.gateway: Gateway | None = None
        super().__init__(directory, **settings)
        self.authority = Authority.create()
        self.register = self.store.register
        self.refused = RefusalCounts(self.store, self.clock)
        self._loop = EventLoop()
        self._loop.__enter__()
        self.address = Address("127.0.0.1", self._opened(0))

    def __enter__(self) -> GuardedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut()
        self._loop.__exit__(None, None, None)
        self.close()

    def restart_coordinator(self) -> None:
        """The gateway goes with it, and comes back on the same port."""
        if self.gateway is not None:
            self._shut()
        super().restart_coordinator()
        if self.started and hasattr(self, "address"):
            self._opened(self.address.port)

    def push(self, device: str, message: ServerMessage) -> bool:
        if isinstance(message, Question):
            self.desk.checks.asking(message)
        return self.gateway is not None and self.gateway.push(device, message)

    def refusals(self) -> dict[str, int]:
        self.refused.flush()
        return dict(self.store.refusals())

    def newcomer(self) -> TestDevice:
        device = TestDevice().known_to(self)
        device.server = SERVER
        return device

    def hostile(self, device: TestDevice) -> HostileDevice:
        assert device.credentials is not None
        return HostileDevice(self.address, device.credentials)

    def _opened(self, port: int) -> int:
        certificate: ServerCertificate = self.authority.issue_server(HOSTS)
        spool = Spool(self.directory / "spool")
        self.gateway = Gateway(
            self.desk,
            self.register,
            self.authority,
            spool,
            self._loop,
            settings=SETTINGS,
            prompt=self.desk,
            on_refusal=self.refused.count,
        )
        return self.gateway.start(f"127.0.0.1:{port}", certificate)

    def _shut(self) -> None:
        assert self.gateway is not None
        self.gateway.close(grace_seconds=0.0)


def update(device: TestDevice, task: Task, steps: int = 1, **altered: Any) -> tuple[UpdateHeader, bytes]:
    """An honest update of so many grid steps in each coordinate, except for what is `altered` before it is signed."""
    width = mechanism_of(task).width_bytes
    payload = pack_array(np.full(LAYOUT.size, steps, dtype=np.int64), width)
    honest = replace(
        device.update(payload, task.task, mechanism_of(task)),
        cohort=task.cohort,
        round=task.round,
        model_sha256=task.model.blob.sha256,
        encoding=GridEncoding(LAYOUT.size, width),
        signature=b"",
    )
    return signed(replace(honest, **altered), device.id, device.signing), payload


def delivery(header: UpdateHeader, payload: bytes) -> Delivery:
    return Delivery(header, next(chunks(payload)))
