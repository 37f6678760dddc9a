"""Who is enrolled, in a table; a look-up costs microseconds, because every call of every device makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, insert, select, update

from server_kit.daemon.register import EnrolledDevice
from server_kit.store import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_sdk.wire.messages import DeviceId
    from server_kit.store.database import Database, Session

_TABLE = schema.devices
_FIND = select(_TABLE.c.device, _TABLE.c.signing_key, _TABLE.c.ledger_key, _TABLE.c.revoked).where(
    _TABLE.c.device == bindparam("of_device")
)
_ADD = insert(_TABLE)
_REVOKE = update(_TABLE).where(_TABLE.c.device == bindparam("of_device")).values(revoked=1)


class SqlRegister:
    """The devices of a federation. `clock` dates enrolments."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock

    def find(self, device: DeviceId) -> EnrolledDevice | None:
        with self._database.looking() as session:
            return _found(session, device)

    def add(self, device: EnrolledDevice) -> EnrolledDevice:
        with self._database.writing() as session:
            kept = _found(session, device.device)
            if kept is not None:
                return kept
            session.run(
                _ADD,
                device=device.device,
                signing_key=device.signing_key,
                ledger_key=device.ledger_key,
                revoked=int(device.revoked),
                enrolled_at_seconds=self._clock(),
                last_seen_seconds=None,
            )
            return device

    def revoke(self, device: DeviceId) -> bool:
        """Keep a device out from now on; False if it is not enrolled."""
        with self._database.writing() as session:
            return session.run(_REVOKE, of_device=device) == 1


def _found(session: Session, device: DeviceId) -> EnrolledDevice | None:
    row = session.one(_FIND, of_device=device)
    return None if row is None else EnrolledDevice(row[0], row[1], row[2], bool(row[3]))
