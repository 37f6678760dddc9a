"""The bell of servers on several machines: LISTEN and NOTIFY of the database that they share."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from sqlalchemy import make_url

from server_kit.store.postgres import Postgres

_RECONNECT_SECONDS = 1.0


class PostgresBell:
    """The listener `name`; of several, each hears."""

    def __init__(self, url: str, name: str) -> None:
        self._backend, self._channel = Postgres(make_url(url)), _channel(name)
        self._connection: Any = None
        self._listen()

    def wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left_seconds = max(0.0, deadline - time.monotonic())
            try:
                if self._connection is not None:
                    return any(True for _ in self._connection.notifies(timeout=left_seconds, stop_after=1))
                self._listen()
            except self._backend.errors:
                self.close()
                time.sleep(min(left_seconds, _RECONNECT_SECONDS))
                if time.monotonic() >= deadline:
                    return False
            else:
                # Whatever rang while nobody listened was not heard, so it counts as a ring.
                return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _listen(self) -> None:
        connection = self._backend.connect()
        connection.execute(f"LISTEN {self._channel}")
        self._connection = connection


class PostgresRinger:
    """Rings bells of any name through one connection."""

    def __init__(self, url: str) -> None:
        self._backend = Postgres(make_url(url))
        self._connection: Any = None

    def ring(self, name: str) -> None:
        """Wake the listeners `name`. A database that is not there wakes nobody: they look when it is back."""
        try:
            if self._connection is None:
                self._connection = self._backend.connect()
            self._connection.execute(f"NOTIFY {_channel(name)}")
        except self._backend.errors:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _channel(name: str) -> str:
    """An identifier that needs no quoting, whatever the name."""
    return f"covey_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
