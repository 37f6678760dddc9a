"""A wire that is cut now and then: everything that goes through it is lost where it is."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Carries TCP to a port of this machine. Use it as a context manager."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._mutex = threading.Lock()
        self._open: set[socket.socket] = set()
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()
        self.cut()

    def cut(self) -> None:
        """End every connection, in the middle of whatever it carries."""
        with self._mutex:
            cut, self._open = self._open, set()
        for each in cut:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._to, 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._mutex:
                self._open |= {near, far}
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._mutex:
            self._open -= {source, target}
