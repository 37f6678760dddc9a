"""A whole server in memory behind the real gateway and the real enrolment desk, on loopback."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from device_sdk.wire.errors import Refused
from device_sdk.wire.invitation import Address, Invitation
from device_sdk.wire.messages import (
    CheckIn,
    Cohorts,
    Decline,
    DeviceId,
    ErrorCode,
    ReleaseHeader,
    ServerMessage,
    UpdateHeader,
    UploadAccepted,
    Welcome,
)
from privacy.keys import SigningKey
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import Receipt
from server_kit.daemon.authority import Authority, ServerCertificate
from server_kit.daemon.enrolment import EnrolmentDesk, EnrolmentServer, EnrolmentSettings
from server_kit.daemon.event_loop import EventLoop
from server_kit.daemon.gateway import Gateway, GatewaySettings
from server_kit.daemon.invitations import Invitations, StoredInvitation
from server_kit.daemon.register import EnrolledDevice
from server_kit.daemon.spool import Parcel, Spool

HOSTS = ("127.0.0.1", "localhost")


class MemoryRegister:
    def __init__(self) -> None:
        self._devices: dict[DeviceId, EnrolledDevice] = {}
        self._mutex = threading.Lock()

    def find(self, device: DeviceId) -> EnrolledDevice | None:
        return self._devices.get(device)

    def add(self, device: EnrolledDevice) -> EnrolledDevice:
        with self._mutex:
            return self._devices.setdefault(device.device, device)

    def revoke(self, device: DeviceId) -> None:
        with self._mutex:
            self._devices[device] = replace(self._devices[device], revoked=True)


class MemoryInvitations:
    def __init__(self) -> None:
        self.stored: dict[bytes, StoredInvitation] = {}
        self._mutex = threading.Lock()

    def add(self, invitation: StoredInvitation) -> None:
        self.stored[invitation.secret_sha256] = invitation

    def find(self, secret_sha256: bytes) -> StoredInvitation | None:
        return self.stored.get(secret_sha256)

    def claim(self, secret_sha256: bytes, device: DeviceId, now: datetime) -> StoredInvitation | None:
        with self._mutex:
            found = self.stored.get(secret_sha256)
            if found is not None and found.used_by is None and now < found.expires_at:
                found = self.stored[secret_sha256] = replace(found, used_by=device)
            return found


class MemoryDesk:
    """Keeps everything; says what a test tells it to say."""

    def __init__(self, receipts: ReceiptDesk, register: MemoryRegister) -> None:
        self.receipts, self.register = receipts, register
        self.cohorts = Cohorts(("0",))
        self.answer: Callable[[DeviceId, CheckIn], ServerMessage | None] = lambda device, check_in: None
        self.blobs: dict[bytes, bytes] = {}
        self.expected: set[str] | None = None
        """The tasks whose updates are wanted; None: all."""
        self.check_ins: list[tuple[DeviceId, CheckIn]] = []
        self.declines: list[tuple[DeviceId, Decline]] = []
        self.departures: list[tuple[DeviceId, bool]] = []
        self.story: list[str] = []
        self.accepted: list[tuple[DeviceId, ReleaseHeader, bytes]] = []
        self._held: set[ReleaseHeader] = set()
        self.repeats = 0
        self.changed = threading.Condition()

    def wait_for(self, wanted: Callable[[MemoryDesk], object], seconds: float = 20.0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: wanted(self), seconds)

    def _note(self, what: str) -> None:
        with self.changed:
            self.story.append(what)
            self.changed.notify_all()

    def welcome(self, device: DeviceId) -> Welcome:
        seen = self.receipts.latest(self.register.find(device).ledger_key)  # type: ignore[union-attr]
        self._note("welcome")
        return Welcome(self.cohorts, b"" if seen is None else seen.to_json())

    def check_in(self, device: DeviceId, check_in: CheckIn) -> ServerMessage | None:
        self.check_ins.append((device, check_in))
        self._note("check in")
        return self.answer(device, check_in)

    def decline(self, device: DeviceId, decline: Decline) -> None:
        self.declines.append((device, decline))
        self._note("decline")

    def gone(self, device: DeviceId, *, leaving: bool) -> None:
        self.departures.append((device, leaving))
        self._note("gone")

    def blob(self, device: DeviceId, sha256: bytes) -> bytes | None:
        return self.blobs.get(sha256)

    def announce(self, device: DeviceId, header: ReleaseHeader) -> UploadAccepted | None:
        if self.expected is not None and isinstance(header, UpdateHeader) and header.task not in self.expected:
            raise Refused(ErrorCode.NOT_ASKED, "this task is not the device's, or it is over; nothing was taken")
        if header not in self._held:
            return None
        self.repeats += 1
        return UploadAccepted(self._countersigned(header), repeated=True)

    def accept(self, device: DeviceId, header: ReleaseHeader, parcel: Parcel) -> UploadAccepted:
        receipt = Receipt.from_json(header.receipt)
        key = self.register.find(device).ledger_key  # type: ignore[union-attr]
        acceptance = self.receipts.accept(receipt, header.payload.sha256.hex(), key)
        if not acceptance.repeated:
            self.accepted.append((device, header, parcel.read()))
            self._held.add(header)
        self._note("accepted")
        return UploadAccepted(acceptance.countersignature.to_json(), acceptance.repeated)

    def _countersigned(self, header: ReleaseHeader) -> bytes:
        return self.receipts.countersign(Receipt.from_json(header.receipt)).to_json()


class MemoryServer:
    """Authority, enrolment and gateway, started; close it when done."""

    def __init__(
        self,
        spool: Path,
        settings: GatewaySettings | None = None,
        authority: Authority | None = None,
        certificate: ServerCertificate | None = None,
        strangers: EnrolmentSettings | None = None,
    ) -> None:
        self.authority = authority or Authority.create()
        self.certificate = certificate or self.authority.issue_server(HOSTS)
        self.key = SigningKey.generate()
        self.register = MemoryRegister()
        self.invitation_store = MemoryInvitations()
        self.invitations = Invitations(self.invitation_store)
        self.desk = MemoryDesk(ReceiptDesk(self.authority.server, self.key, MemoryShelf()), self.register)
        self.refused: Counter[str] = Counter()
        self.loop = EventLoop()
        self._settings = settings
        self.spool = spool
        self.gateway = self._new_gateway()
        self.address = Address("127.0.0.1", self.gateway.start("127.0.0.1:0", self.certificate))
        enrolment = EnrolmentDesk(self.authority, self.invitations, self.register, self.key.public_key, self.address)
        self.enrolment = EnrolmentServer(enrolment, self.loop, strangers, self.count_refusal)
        self.enrolment_address = Address("127.0.0.1", self.enrolment.start("127.0.0.1:0", self.certificate))

    def count_refusal(self, reason: str, _: DeviceId | None) -> None:
        self.refused[reason] += 1

    def invitation(self) -> Invitation:
        return self.invitations.mint(self.enrolment_address, self.authority.fingerprint)

    def restart_gateway(self) -> None:
        """As after a crash: no goodbye, the same port, what is on disk is kept."""
        self.stop_gateway()
        self.gateway = self._new_gateway()
        self.gateway.start(str(self.address), self.certificate)

    def stop_gateway(self) -> None:
        self.gateway.close(grace_seconds=0)

    def close(self) -> None:
        self.gateway.close(grace_seconds=0.2)
        self.enrolment.close(grace_seconds=0)
        self.loop.close()

    def _new_gateway(self) -> Gateway:
        return Gateway(
            self.desk,
            self.register,
            self.authority,
            Spool(self.spool),
            self.loop,
            settings=self._settings,
            on_refusal=self.count_refusal,
        )
