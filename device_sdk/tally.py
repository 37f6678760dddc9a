"""How many tasks and questions one server has had from this device: today, and in all.

Counted in the transaction that accepts them, by what they were for. A clock that is set back gives no new day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.errors import VaultBroken
from device_sdk.events import emit, error_name
from privacy.canonical import canonical, parse, take_whole

if TYPE_CHECKING:
    from device_sdk.vault import Vault

_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Taken:
    """Of one purpose."""

    day: int = 0
    """Days since 1970, in UTC."""
    today: int = 0
    in_all: int = 0

    def on(self, day: int) -> Taken:
        """The same, looked at on some day."""
        return self if day <= self.day else Taken(day, 0, self.in_all)


class Tally:
    """What one server has had."""

    def __init__(self, vault: Vault, server: str) -> None:
        self._rows = vault.table(server, "taken")

    def taken(self, purpose: str, now_seconds: float) -> Taken:
        """How many were taken for a purpose."""
        day = int(now_seconds) // _DAY_SECONDS
        try:
            row = self._rows.get(purpose)
            return (Taken() if row is None else _read(row)).on(day)
        except (VaultBroken, ValueError) as error:
            emit("round_unreadable", error=error_name(error))
            return Taken(day)

    def count(self, purpose: str, now_seconds: float) -> None:
        """One more; inside `vault.changing()`."""
        so_far = self.taken(purpose, now_seconds)
        self._rows.put(purpose, canonical({"day": so_far.day, "today": so_far.today + 1, "in_all": so_far.in_all + 1}))


def _read(row: bytes) -> Taken:
    fields = parse(row)
    return Taken(*(take_whole(fields, name) for name in ("day", "today", "in_all")))
