"""Devices that lie about what this server told them, or about their update: enough of these strikes cost some rounds.

Strikes and bans are in the store before the device hears of them, so that a restart forgives nothing. A ban is counted
in rounds and expires by itself.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.store.protocol import Happening

if TYPE_CHECKING:
    from collections.abc import Mapping

    from device_sdk.wire.messages import DeviceId
    from server_kit.store.protocol import Store

log = logging.getLogger("covey.server")

FORGED = "forged affinity"
TOO_LONG = "out of norm"
"""An update that no honest device could have made. The gateway counts these, as it counts every refusal."""
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
        self._strikes = Counter({each.device: _strikes(each.refusals) for each in store.devices()})
        told = store.happenings(kind=BANNED, limit=1 << 30)
        self._until: dict[DeviceId, int] = {each.facts["device"]: each.facts["until_round"] for each in told}

    def strike(self, device: DeviceId, round_number: int, now_seconds: float, reason: str = FORGED) -> None:
        """A device has lied in this round."""
        with self._mutex:
            if reason == FORGED:
                self._store.count_refusal(reason, device, now_seconds)
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


def _strikes(refusals: Mapping[str, int]) -> int:
    return sum(refusals.get(reason, 0) for reason in (FORGED, TOO_LONG))
