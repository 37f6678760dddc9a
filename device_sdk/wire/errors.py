"""Everything that goes wrong on the wire, as one tree; each message says what, why, and what became of the data.

WireError
├── MalformedMessage     the bytes are not a message of ours, or a field is out of bounds
│   ├── WrongVersion     the other end speaks another major version
│   └── TooLarge         more was declared or sent than is allowed
├── PayloadMismatch      a transfer's bytes are not those that were announced
├── SignatureInvalid     not signed by the key that was enrolled
├── InvalidInvitation    not an invitation, or for another server
├── UntrustedServer      the server is not the one that was pinned
│   └── TlsTooOld        it does not speak TLS 1.3
├── Refused              the other end said no; `code` says why
├── ConnectionLost       the connection failed or broke; trying again may help
│   └── ServerBusy       as many others are being served as the server takes at once
├── DeadlinePassed       it took longer than allowed
└── Cancelled            the app asked to stop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.wire.messages import ErrorCode


class WireError(Exception):
    """Base of all errors raised by `device_sdk.wire`."""


class MalformedMessage(WireError, ValueError):
    """Bytes that are no message of ours, or a field out of its bounds; nothing was done with them."""


class WrongVersion(MalformedMessage):
    """The other end speaks another major version of the protocol; one of the two must be updated."""


class TooLarge(MalformedMessage):
    """More was declared or sent than is allowed; it was refused before memory was taken for it."""


class PayloadMismatch(WireError):
    """The bytes of a transfer are not those that were announced; they were thrown away."""


class SignatureInvalid(WireError):
    """Not signed by the key that was enrolled; nothing was counted."""


class InvalidInvitation(WireError, ValueError):
    """These characters are no invitation; nothing was sent."""


class UntrustedServer(WireError):
    """The server could not prove that it is the one this device enrolled with; nothing was sent."""


class TlsTooOld(UntrustedServer):
    """The server does not speak TLS 1.3; nothing was sent."""


class Refused(WireError):
    """The other end said no. With `retry_after_seconds` 0, trying again will not help."""

    def __init__(self, code: ErrorCode, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class ConnectionLost(WireError):
    """The connection could not be made or has broken; what was under way can be taken up again."""


class ServerBusy(ConnectionLost):
    """The server serves as many others as it takes at once; nothing was done, and asking again soon will help."""


class DeadlinePassed(WireError):
    """The call took longer than its deadline; what was under way can be taken up again."""


class Cancelled(WireError):
    """The call was cancelled from this end; what was under way can be taken up again."""
