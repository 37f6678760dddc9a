"""Which devices are here, and what each asked for when it checked in. It is forgotten with the process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.interfaces import CheckIn, DeviceId


class Presence:
    """For any thread: the gateway's tell it, the coordinator's asks."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._here: set[DeviceId] = set()
        self._waiting: dict[DeviceId, CheckIn] = {}
        self._newcomers: set[DeviceId] = set()

    def came(self, device: DeviceId) -> None:
        """Its stream is open; it has not said yet that it is ready."""
        with self._mutex:
            self._here.add(device)
            self._waiting.pop(device, None)
            self._newcomers.add(device)

    def taken_newcomers(self) -> set[DeviceId]:
        """Who has come since this was asked last."""
        with self._mutex:
            taken, self._newcomers = self._newcomers, set()
            return taken

    def ready(self, check_in: CheckIn) -> None:
        """It waits for work."""
        with self._mutex:
            if check_in.device in self._here:
                self._waiting[check_in.device] = check_in

    def busy(self, device: DeviceId) -> None:
        """It was given something to do."""
        with self._mutex:
            self._waiting.pop(device, None)

    def gone(self, device: DeviceId) -> None:
        with self._mutex:
            self._here.discard(device)
            self._waiting.pop(device, None)

    def waiting(self) -> dict[DeviceId, CheckIn]:
        """Who waits, by name, and what each asked for."""
        with self._mutex:
            return dict(sorted(self._waiting.items()))

    def num_waiting(self) -> int:
        with self._mutex:
            return len(self._waiting)

    def is_worth_a_look(self, fewest_waiting: float) -> bool:
        """Whether so many wait, or someone has come whom nobody has looked at yet."""
        with self._mutex:
            return bool(self._newcomers) or len(self._waiting) >= fewest_waiting

    def here(self) -> set[DeviceId]:
        with self._mutex:
            return set(self._here)
