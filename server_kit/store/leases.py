"""Who may work at what: a lease has a number that grows, and a write that names an older one is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select

from server_kit.store import schema
from server_kit.store.parts import Part
from server_kit.store.protocol import Lease
from server_kit.store.refusals import lease_lost

if TYPE_CHECKING:
    from server_kit.store.database import Session

_LEASES = schema.leases
_NEWEST = select(_LEASES).where(_LEASES.c.name == bindparam("of_name"))
_HELD = select(_LEASES).where(_LEASES.c.holder != "")


class SqlLeases(Part):
    """Leases in a table."""

    def acquire(self, name: str, holder: str, seconds: float, now_seconds: float) -> Lease | None:
        with self._database.writing() as session:
            last = newest(session, name)
            if last is not None and last.holder not in ("", holder) and now_seconds < last.until_seconds:
                return None
            epoch = 1 if last is None else last.epoch + 1
            return _keep(session, Lease(name, holder, epoch, now_seconds + seconds))

    def renew(self, lease: Lease, seconds: float, now_seconds: float) -> Lease:
        with self._database.writing() as session:
            check_newest(session, lease)
            return _keep(session, replace(lease, until_seconds=now_seconds + seconds))

    def release(self, lease: Lease) -> None:
        with self._database.writing() as session:
            if _is_newest(session, lease):
                # Its epoch stays, so that the next holder's is higher.
                _keep(session, replace(lease, holder="", until_seconds=0.0))

    def held(self) -> list[Lease]:
        with self._database.looking() as session:
            return [Lease(*row) for row in sorted(session.all(_HELD))]


def newest(session: Session, name: str) -> Lease | None:
    row = session.one(_NEWEST, of_name=name)
    return None if row is None else Lease(*row)


def check_newest(session: Session, lease: Lease) -> None:
    """In the transaction that writes: `LeaseLost` unless this is the newest lease of its name."""
    if not _is_newest(session, lease):
        raise lease_lost(lease)


def _is_newest(session: Session, lease: Lease) -> bool:
    last = newest(session, lease.name)
    return last is not None and (last.holder, last.epoch) == (lease.holder, lease.epoch)


def _keep(session: Session, lease: Lease) -> Lease:
    session.replace(_LEASES, [lease.__dict__])
    return lease
