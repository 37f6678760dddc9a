"""Who is enrolled: each device with the keys it proved to have, and whether it still may come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from device_sdk.wire.messages import DeviceId


@dataclass(frozen=True)
class EnrolledDevice:
    """A device as the server knows it."""

    device: DeviceId
    signing_key: bytes
    """Signs its updates and summaries."""
    ledger_key: bytes
    """Signs its receipts."""
    revoked: bool = False


class Register(Protocol):
    """Where a server keeps its devices. Used from several threads, the gateway's event loop among them."""

    def find(self, device: DeviceId) -> EnrolledDevice | None:
        """The device as it stands now: a revocation by any process shows at the next call.

        Asked on every call, and everyone waits meanwhile: a look-up by key in an open database, nothing slower.
        """

    def add(self, device: EnrolledDevice) -> EnrolledDevice:
        """Keep a new device, durably; one that is there already stays as it is. Returns what is kept."""
