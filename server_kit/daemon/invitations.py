"""Invitations: minted by the operator, good for one device and a while, kept only as a hash.

Whoever reads the store learns no secret. An invitation belongs to the first device that redeems it: that device
may ask again after a lost reply, any other is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from device_sdk.wire.errors import Refused
from device_sdk.wire.invitation import SECRET_BYTES, Address, Invitation
from device_sdk.wire.messages import ErrorCode

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId

LIFETIME = timedelta(days=7)
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class StoredInvitation:
    """What the server remembers of an invitation."""

    secret_sha256: bytes
    expires_at: datetime
    used_by: DeviceId | None = None


class InvitationStore(Protocol):
    """Where invitations are kept."""

    def add(self, invitation: StoredInvitation) -> None:
        """Keep a new invitation, durably."""

    def find(self, secret_sha256: bytes) -> StoredInvitation | None:
        """The invitation as it stands, None if there is no such one. Asked for every guess: a look-up by key."""

    def claim(self, secret_sha256: bytes, device: DeviceId, now: datetime) -> StoredInvitation | None:
        """Note `device` as the user of an invitation that is unused and not expired, in one step and durably.

        Returns the invitation as it then stands, or None if there is no such invitation.
        """


class Invitations:
    """Mints invitations and takes them back."""

    def __init__(self, store: InvitationStore, clock: Clock = utc_now) -> None:
        self._store, self._clock = store, clock

    def mint(self, address: Address, fingerprint: bytes, lifetime: timedelta = LIFETIME) -> Invitation:
        """A new invitation to the enrolment desk at `address`, whose authority has this fingerprint."""
        secret = os.urandom(SECRET_BYTES)
        self._store.add(StoredInvitation(_hashed(secret), self._clock() + lifetime))
        return Invitation(address, fingerprint, secret)

    def check(self, secret: bytes, device: DeviceId) -> None:
        """Raise `Refused` if `device` cannot come in by this invitation. It costs a look-up, and uses nothing up."""
        stored = self._store.find(_hashed(secret))
        is_free = stored is not None and stored.used_by is None and self._clock() < stored.expires_at
        if not is_free:
            _check_claimed(stored, device)

    def redeem(self, secret: bytes, device: DeviceId) -> None:
        """Let `device` in by this invitation, or raise `Refused` with the reason."""
        _check_claimed(self._store.claim(_hashed(secret), device, self._clock()), device)


def _check_claimed(stored: StoredInvitation | None, device: DeviceId) -> None:
    """Refuse an invitation that is not this device's, with the reason."""
    if stored is None:
        raise Refused(ErrorCode.INVITATION_UNKNOWN, "this invitation was never given out; nobody was enrolled")
    if stored.used_by == device:
        return
    if stored.used_by is not None:
        raise Refused(
            ErrorCode.INVITATION_USED,
            "this invitation was used by another device; ask the operator for a new one; nobody was enrolled",
        )
    raise Refused(
        ErrorCode.INVITATION_EXPIRED,
        f"this invitation expired on {stored.expires_at:%Y-%m-%d %H:%M} UTC; ask the operator for a new one; "
        "nobody was enrolled",
    )


def _hashed(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
