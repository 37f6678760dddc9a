"""The connections that peers hold to a port of gRPC's, so that no address and no device holds too many of them.

gRPC bounds how many there are in all, how long a handshake may take and how long one may be idle. It does not tell
Python who is connected, and has no way to close a connection. Its sockets are descriptors of this process, though:
they are looked at once a second, and those that are too many are shut down, which to gRPC looks as if the peer had
hung up. Nothing passes through us, so nobody pays for it.

Of a network's connections those without a call that has said something go first, the oldest before the others: an
honest newcomer is young and has a call. A young one goes only if the port is nearly full. Of a device's connections the
newest stay: the older ones are lost, as far as it knows.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from server_kit.daemon.calls import blocking
from server_kit.daemon.networks import network_of, network_of_peer, port_of_peer
from server_kit.daemon.refusals import log

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_LOOK_SECONDS = 1.0
_DESCRIPTORS = Path("/dev/fd")
_CROWDED = 0.9
"""Of all connections that may be: from there on those who hold most make way."""

End = tuple[str, int]
"""The other end of a connection: its network and its port."""


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be."""

    of_network: int
    in_all: int
    young_seconds: float = 0.0
    """Before it is so old, no connection is one too many of its network: many may come in the same moment."""
    of_device: int | None = None


@dataclass(frozen=True)
class Held:
    """A connection that stands: the descriptor it has in this process, what is at its other end."""

    descriptor: int
    inode: int
    end: End


@dataclass
class Connections:
    """Who is at the other end of a port's connections, and which are too many. Lives on the event loop."""

    limits: ConnectionLimits
    _calls: Counter[End] = field(default_factory=Counter)
    """Calls under way that have said something, by connection."""
    _devices: dict[End, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _since: dict[tuple[int, End], float] = field(default_factory=dict)
    """When each connection was first seen, the oldest first."""

    @contextmanager
    def calling(self, peer: str, device: str | None = None) -> Iterator[None]:
        """While a call that has said something is under way on this peer's connection."""
        end = end_of(peer)
        if device is not None:
            self._devices[end] = device
        self._calls[end] += 1
        try:
            yield
        finally:
            self._calls[end] -= 1
            if not self._calls[end]:
                del self._calls[end]

    def excess(self, held: Iterable[Held]) -> list[Held]:
        """Those that are to be hung up now, of all that stand."""
        stand = {(each.inode, each.end): each for each in held}
        now = self.clock()
        self._since = {key: self._since.get(key, now) for key in (*self._since, *stand) if key in stand}
        ends = {each.end for each in stand.values()}
        self._devices = {end: device for end, device in self._devices.items() if end in ends}
        in_order = [stand[key] for key in self._since]
        doomed = self._of_devices(in_order)
        rest = [each for each in in_order if each not in doomed]
        doomed |= self._of_networks(rest)
        return [*doomed, *self._of_all([each for each in rest if each not in doomed])]

    def _of_devices(self, held: list[Held]) -> set[Held]:
        if self.limits.of_device is None:
            return set()
        by_device = _grouped(held, lambda each: self._devices.get(each.end))
        return {each for of_one in by_device.values() for each in of_one[: -self.limits.of_device]}

    def _of_networks(self, held: list[Held]) -> set[Held]:
        by_network = _grouped(held, lambda each: each.end[0])
        doomed = {
            each
            for of_one in by_network.values()
            for each in self._least_missed(of_one)[: max(0, len(of_one) - self.limits.of_network)]
        }
        grown_up = self.clock() - self.limits.young_seconds
        return {each for each in doomed if self._since[each.inode, each.end] <= grown_up}

    def _of_all(self, held: list[Held]) -> list[Held]:
        """So many that newcomers find a place again, from those networks that hold most."""
        too_many = len(held) - int(self.limits.in_all * _CROWDED)
        doomed: list[Held] = []
        by_network = {name: self._least_missed(of_one) for name, of_one in _grouped(held, lambda e: e.end[0]).items()}
        while too_many > len(doomed):
            largest = max(by_network.values(), key=len)
            doomed.append(largest.pop(0))
        return doomed

    def _least_missed(self, held: list[Held]) -> list[Held]:
        """The idle ones first; each kind in the order of age."""
        return sorted(held, key=lambda each: self._calls[each.end] > 0)


def end_of(peer: str) -> End:
    """The connection of a call, by how gRPC writes its peer."""
    return network_of_peer(peer), port_of_peer(peer)


def held_to(port: int, known: dict[tuple[int, int], End | None] | None = None) -> list[Held]:
    """The connections to a port of this process. `known` is kept from look to look, so that old ones cost little."""
    known = {} if known is None else known
    found, seen = [], set()
    for descriptor in _open_descriptors():
        with suppress(OSError):
            inode = os.fstat(descriptor).st_ino
            key = descriptor, inode
            if key not in known:
                known[key] = _other_end(descriptor, port)
            seen.add(key)
            if (end := known[key]) is not None:
                found.append(Held(descriptor, inode, end))
    for key in known.keys() - seen:
        del known[key]
    return found


def hang_up(held: Iterable[Held]) -> int:
    """Shut connections down; gRPC finds them closed and tidies up. How many there were."""
    count = 0
    for each in held:
        # Closed in the meantime, the number may be another file's.
        with suppress(OSError), _borrowed(each.descriptor) as connection:
            if os.fstat(each.descriptor).st_ino == each.inode:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


async def keep_few(connections: Connections, door: str, port: int, pool: ThreadPoolExecutor) -> None:
    """Hang up whatever is too much, again and again, until cancelled."""
    known: dict[tuple[int, int], End | None] = {}
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            doomed = connections.excess(await blocking(pool, held_to, port, known))
            await blocking(pool, hang_up, doomed)
            _log_hung_up(door, doomed)
        except OSError:
            log.exception("failed to count connections; trying again", extra={"door": door})


def _log_hung_up(door: str, held: list[Held]) -> None:
    """One line for each network, however many connections it held."""
    for network, times in Counter(each.end[0] for each in held).items():
        log.warning("hung up connections: too many are open", extra={"door": door, "peer": network, "times": times})


def _open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir(_DESCRIPTORS) if name.isdecimal()]  # noqa: PTH208 - names, not paths


def _other_end(descriptor: int, port: int) -> End | None:
    """Of a connection to our port; None for any other file."""
    try:
        with _borrowed(descriptor) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                return None
            host, far_port, *_ = connection.getpeername()
    except OSError:
        return None
    return network_of(host), far_port


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket of gRPC's as one of Python's. No copy: gRPC's poller would go on hearing of one that it has closed."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def _grouped(held: Iterable[Held], key: Callable[[Held], str | None]) -> dict[str, list[Held]]:
    groups: dict[str, list[Held]] = defaultdict(list)
    for each in held:
        if (name := key(each)) is not None:
            groups[name].append(each)
    return groups
