"""A wire between a device and a server that counts what passes and breaks where it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from device_sdk.wire.invitation import Address


class Relay:
    """Passes bytes on, below TLS. Use it as a context manager.

    Of `breaks`, the first connection takes the first number, and so on: it breaks once so many bytes have passed
    in both directions together. Connections beyond the list hold.
    """

    def __init__(self, target: Address, breaks: Sequence[int] = ()) -> None:
        self._target = target
        self._breaks = list(breaks)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.to_server = 0
        self.to_device = 0
        self.connections = 0
        self.passing = threading.Event()
        """Cleared, the wire swallows everything in silence, as when a device has walked out of reach."""
        self.passing.set()
        self._mutex = threading.Lock()
        self._open: list[socket.socket] = []

    def __enter__(self) -> Relay:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Closing alone does not wake a thread in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            _break(end)

    def _listen(self) -> None:
        while True:
            try:
                device, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(device)
            self._open.append(server := socket.create_connection((self._target.host, self._target.port)))
            self.connections += 1
            wire = _Wire(self, device, server, self._breaks.pop(0) if self._breaks else None)
            for source, sink in ((device, server), (server, device)):
                threading.Thread(target=wire.pass_on, args=(source, sink), daemon=True).start()

    def count(self, number: int, *, from_device: bool) -> None:
        with self._mutex:
            if from_device:
                self.to_server += number
            else:
                self.to_device += number


class _Wire:
    """One connection."""

    def __init__(self, relay: Relay, device: socket.socket, server: socket.socket, left: int | None) -> None:
        self._relay, self._device, self._server = relay, device, server
        self._left = left
        self._mutex = threading.Lock()

    def pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while body := source.recv(1 << 16):
                passed = self._allowed(len(body))
                if not self._relay.passing.is_set():
                    continue
                sink.sendall(body[:passed])
                self._relay.count(passed, from_device=source is self._device)
                if passed < len(body):
                    break
        _break(self._device)
        _break(self._server)

    def _allowed(self, number: int) -> int:
        with self._mutex:
            if self._left is None:
                return number
            allowed = min(number, self._left)
            self._left -= allowed
            return allowed


def _break(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
