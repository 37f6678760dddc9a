"""Devices that lie: about what this server has told them, what a release cost, what a summary or an update says.

Each lie is a strike, and enough of them cost some rounds.

Strikes and bans are in the store before the device hears of them, so that a restart forgives nothing. A ban is counted
in rounds and expires by itself.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.daemon.intake_checks import FALSE_COST
from server_kit.daemon.plausible import IMPLAUSIBLE
from server_kit.store.protocol import Happening

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from server_kit.store.protocol import Store

log = logging.getLogger("covey.server")

FORGED = "forged affinity"
TOO_LONG = "out of norm"
"""An update that no honest device could have made."""
LIES = frozenset({FORGED, FALSE_COST, IMPLAUSIBLE, TOO_LONG})
"""What no honest device does; each is counted with the device under this name."""
BANNED = "ban"
"""The kind of happening that tells of one."""


@dataclass(frozen=True)
class Leniency:
    """How much a device may lie."""

    strikes: int = 3
    """Every so many cost a ban."""
    ban_rounds: int = 50


class Blacklist:
    """For any thread."""

    def __init__(self, store: Store, leniency: Leniency | None = None) -> None:
        self.leniency = leniency or Leniency()
        self._store, self._mutex = store, threading.Lock()
        self._strikes = Counter(
            {each.device: sum(each.refusals.get(lie, 0) for lie in LIES) for each in store.devices()}
        )
        told = store.happenings(kind=BANNED, limit=1 << 30)
        self._until: dict[DeviceId, int] = {each.facts["device"]: each.facts["until_round"] for each in told}

    def strike(self, device: DeviceId, round_number: int, now_seconds: float, *, counted: bool = False) -> None:
        """A device has lied in this round; `counted`: its refusal is counted elsewhere."""
        with self._mutex:
            if not counted:
                self._store.count_refusal(FORGED, device, now_seconds)
            self._strikes[device] += 1
            if self._strikes[device] % self.leniency.strikes:
                return
            until = round_number + self.leniency.ban_rounds
            facts = {"device": device, "until_round": until}
            self._store.note(Happening(BANNED, now_seconds, facts=facts))
            self._until[device] = until
        log.warning("a device is left out for a while", extra=facts)

    def is_banned(self, device: DeviceId, round_number: int) -> bool:
        """Whether a device must wait."""
        return round_number < self._until.get(device, 0)
