"""What the gateway asks of the rest of the server. It carries messages; what they mean is decided behind the desk.

All methods block and are called from a pool of threads, for different devices at the same time. A `Refused`,
`MalformedMessage` or `ReceiptRefused` raised here reaches the device with its reason; any other error is logged
and reaches it as "try again later". The gateway has checked who calls, over which TLS, and every field's bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

    from device_sdk.wire.messages import (
        CheckIn,
        Decline,
        DeviceId,
        ReleaseHeader,
        ServerMessage,
        UploadAccepted,
        Welcome,
    )
    from server_kit.daemon.spool import Parcel


class Attendance(Protocol):
    """Who is there, and what they would like to do. Tasks and feedback are pushed later (`Gateway.push`)."""

    def welcome(self, device: DeviceId) -> Welcome:
        """A device has opened its stream: the cohorts, and how far this server has seen its ledger."""

    def check_in(self, device: DeviceId, check_in: CheckIn) -> ServerMessage | None:
        """A device is ready. An answer that is known at once (a waiting task, ComeBack), or None."""

    def decline(self, device: DeviceId, decline: Decline) -> None:
        """A device will not do its task."""

    def gone(self, device: DeviceId, *, leaving: bool) -> None:
        """A device's stream has ended; `leaving`: it will not come back."""


class Models(Protocol):
    """What devices may fetch."""

    def blob(self, device: DeviceId, sha256: bytes) -> bytes | memoryview | None:
        """The bytes with this hash, if there are such and this device may have them. A memory map will do."""


class Releases(Protocol):
    """What devices send."""

    def announce(self, device: DeviceId, header: ReleaseHeader) -> UploadAccepted | None:
        """A signed header has arrived: the acknowledgement again if its bytes were accepted before, else None.

        Refuse here what is not wanted: a task that is not the device's or over, another size than the task's.
        """

    def accept(self, device: DeviceId, header: ReleaseHeader, parcel: Parcel) -> UploadAccepted:
        """Store a release with its receipt, durably and in one step; only then answer. A repeat is counted once.

        The receipt is for these bytes and names the device's ledger key; that this key has signed it is to be
        checked here (`privacy.receipt_desk.ReceiptDesk`).
        """


class Desk(Attendance, Models, Releases, Protocol):
    """All that a gateway needs behind it."""


class Prompt(Protocol):
    """What a desk can begin without waiting for a disk, asked for on the gateway's event loop.

    Handing a small thing to a thread and back takes longer than doing it. Errors are those of the desk's own methods.
    """

    def waits(self, device: DeviceId, check_in: CheckIn) -> bool:
        """A device is ready, and this was noted; False: nothing was, and `check_in` decides."""

    def begin_accept(
        self, device: DeviceId, header: ReleaseHeader, parcel: Parcel
    ) -> tuple[UploadAccepted, Future[bool] | None]:
        """What to answer once the release is stored, which the future tells; None: it was stored before.

        False: another came first, and `accept` decides.
        """
