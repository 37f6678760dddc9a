"""How the observer's port treats whoever connects and says nothing: it waits a little, and makes room for others.

uvicorn has a limit for all connections, beyond which it answers 503 to everyone, those who only ask for health
included; and no limit to how long a request may take to come. Here a connection without a request is closed after
some seconds, and before that if its place is wanted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from server_kit.daemon.networks import network_of

MOST_CONNECTIONS = 256
MOST_OF_A_NETWORK = 128
"""Of one address, or of one network of IPv6: a proxy's too, so it must hold all streams there may be, and more."""
REQUEST_SECONDS = 10.0
"""For a request's head to come, from the connection's beginning or the last answer on."""


class PatientProtocol(H11Protocol):
    """HTTP on one connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = network_of(self.client[0] if self.client else "")
        self.made_at = self.loop.time()
        self._make_room()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    @property
    def is_silent(self) -> bool:
        """Whether no request is under way."""
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn declares
        return cycle is None or bool(cycle.response_complete)

    def _wait(self) -> None:
        """For the next request, and not for long."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.is_silent:
            self.transport.close()

    def _make_room(self) -> None:
        """Too many are here: the oldest that says nothing goes, of this network or of the one with most; or we do."""
        peers = [each for each in self.connections if isinstance(each, PatientProtocol) and not _is_closing(each)]
        of_network = Counter(each.network for each in peers)
        if of_network[self.network] > MOST_OF_A_NETWORK:
            crowded = self.network
        elif len(peers) > MOST_CONNECTIONS:
            crowded = of_network.most_common(1)[0][0]
        else:
            return
        silent = [each for each in peers if each.network == crowded and each.is_silent]
        oldest = min(silent, key=lambda each: each.made_at, default=self)
        oldest.transport.close()


def _is_closing(protocol: Any) -> bool:
    return bool(protocol.transport.is_closing())
