"""How a refusal leaves the server: the device is told in its error, the operator in the log, both the same sentence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from device_sdk.wire.codec import encode
from device_sdk.wire.errors import (
    MalformedMessage,
    PayloadMismatch,
    Refused,
    SignatureInvalid,
    TooLarge,
    WireError,
    WrongVersion,
)
from device_sdk.wire.messages import Error, ErrorCode
from device_sdk.wire.services import ERROR_METADATA
from privacy.errors import ReceiptRefused

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId

log = logging.getLogger("covey.server")

_CODES: list[tuple[type[Exception], ErrorCode]] = [
    (WrongVersion, ErrorCode.WRONG_VERSION),
    (TooLarge, ErrorCode.TOO_LARGE),
    (MalformedMessage, ErrorCode.MALFORMED),
    (PayloadMismatch, ErrorCode.WRONG_HASH),
    (SignatureInvalid, ErrorCode.WRONG_SIGNATURE),
    (ReceiptRefused, ErrorCode.RECEIPT_REFUSED),
]
REFUSALS = (WireError, ReceiptRefused)
_OURS_RETRY_SECONDS = 60.0
_MOST_TOLD = 10_000
_told: set[tuple[DeviceId, str]] = set()


def refusal_of(error: Exception) -> Refused:
    """Why a call is refused, for an error of ours or of the other end; a fault of the server's own tells nothing."""
    if isinstance(error, Refused):
        return error
    for cls, code in _CODES:
        if isinstance(error, cls):
            return Refused(code, str(error))
    return Refused(
        ErrorCode.INTERNAL, "the server failed at this call; its log says why; try again later", _OURS_RETRY_SECONDS
    )


class Misconduct(Refused):
    """A refusal that is counted under a name of its own."""

    def __init__(self, reason: str, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.reason = reason


def reason_of(error: Exception) -> str:
    """Under which name a refusal is counted."""
    named = getattr(error, "reason", "") if isinstance(error, Misconduct | ReceiptRefused) else ""
    return str(named) or refusal_of(error).code.name.lower().replace("_", " ")


def _was_told(device: DeviceId | None, reason: str) -> bool:
    """Whether the log has this of this device already: a flood of the same is counted, and need not fill a disk."""
    if device is None:
        return False
    if (device, reason) in _told:
        return True
    if len(_told) >= _MOST_TOLD:
        _told.clear()
    _told.add((device, reason))
    return False


async def refuse(context: Any, error: Exception, device: DeviceId | None) -> NoReturn:
    """End a call with a refusal, and log it."""
    refusal = refusal_of(error)
    fields = {"code": refusal.code.name.lower(), "device": device, "peer": context.peer()}
    if isinstance(error, REFUSALS):
        level = logging.DEBUG if _was_told(device, reason_of(error)) else logging.WARNING
        log.log(level, "refused a call: %s", refusal, extra=fields)
    else:
        log.error("failed at a call", exc_info=error, extra=fields)
    sentence = "".join(character if character.isprintable() else " " for character in str(refusal)[:500])
    body = encode(Error(refusal.code, sentence, refusal.retry_after_seconds))
    status = grpc.StatusCode.UNAVAILABLE if refusal.retry_after_seconds else grpc.StatusCode.FAILED_PRECONDITION
    await context.abort(status, refusal.code.name, trailing_metadata=((ERROR_METADATA, body),))
    raise AssertionError("abort does not return")
