"""A certificate is renewed in place, before it ends: while the device waits, and between the batches it trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from device_sdk.errors import CertificateRefused
from device_sdk.identity import RENEWAL_FRACTION
from device_sdk.tls_keys import validity
from device_sdk.wire.errors import WireError

if TYPE_CHECKING:
    from device_sdk.identity import Identity
    from device_sdk.wire.channel import Channel

_RETRY_SECONDS = 60.0
_SHORTEST_WAIT_SECONDS = 1.0


class Renewal:
    """Keeps the certificate of one device at one server fresh."""

    def __init__(self, identity: Identity, channel: Channel, clock: Callable[[], float]) -> None:
        self._identity, self._channel, self._clock = identity, channel, clock
        self._next = self._due_at()

    def wait_seconds(self) -> float:
        """How long nothing is to be done."""
        return max(_SHORTEST_WAIT_SECONDS, self._next - self._clock())

    def renew_if_due(self) -> None:
        """Renew; where that fails it is tried again later, and what is under way goes on."""
        if self._clock() < self._next:
            return
        with suppress(WireError, CertificateRefused):
            self._identity.renew(self._channel.renew(self._identity.renewal_request()).certificate)
            self._channel.use(self._identity.credentials)
        self._next = max(self._due_at(), self._clock() + _RETRY_SECONDS)

    def _due_at(self) -> float:
        begins, ends = validity(self._identity.enrolled.certificate)
        return (begins + (ends - begins) * RENEWAL_FRACTION).timestamp()
