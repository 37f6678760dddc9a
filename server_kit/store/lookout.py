"""What people and the dashboard look at."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

from sqlalchemy import select

from server_kit.store import schema
from server_kit.store.happenings import happenings_after, note_all
from server_kit.store.parts import Part, cohort_of
from server_kit.store.protocol import DeviceRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from server_kit.store.protocol import CohortRecord, Happening

_DEVICES, _REFUSALS = schema.devices, schema.refusals
_ALL_DEVICES = select(
    _DEVICES.c.device, _DEVICES.c.enrolled_at_seconds, _DEVICES.c.last_seen_seconds, _DEVICES.c.revoked
)
_ALL_REFUSALS = select(_REFUSALS.c.device, _REFUSALS.c.reason, _REFUSALS.c.count)
_SUMS = select(_REFUSALS.c.reason, _REFUSALS.c.count).where(_REFUSALS.c.device == "")
_NEWEST = schema.newest_receipts
_RELEASES = select(_NEWEST.c.device, _NEWEST.c.receipts)
_ALL_COHORTS = select(schema.cohorts)


class SqlLookout(Part):
    """Happenings, devices, refusals, cohorts."""

    def happenings(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[Happening]:
        with self._database.looking() as session:
            return happenings_after(session, after, limit, kind)

    def note(self, happening: Happening) -> None:
        with self._database.writing() as session:
            note_all(session, [happening])

    def devices(self) -> list[DeviceRecord]:
        with self._database.reading() as session:
            devices = session.all(_ALL_DEVICES)
            releases: Counter[str] = Counter()
            for device, count in session.all(_RELEASES):
                releases[device] += count
            refusals: dict[str, dict[str, int]] = {}
            for device, reason, count in session.all(_ALL_REFUSALS):
                refusals.setdefault(device, {})[reason] = count
        return [
            DeviceRecord(name, enrolled_at, last_seen, bool(revoked), refusals.get(name, {}), releases[name])
            for name, enrolled_at, last_seen, revoked in sorted(devices, key=itemgetter(0))
        ]

    def refusals(self) -> Mapping[str, int]:
        with self._database.looking() as session:
            return dict(session.all(_SUMS))

    def all_cohorts(self) -> list[CohortRecord]:
        with self._database.looking() as session:
            return [cohort_of(row) for row in sorted(session.all(_ALL_COHORTS), key=itemgetter(0))]
