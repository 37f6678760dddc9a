"""Who is invited, in a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select, update

from server_kit.daemon.invitations import StoredInvitation
from server_kit.store import schema

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from server_kit.store.database import Database

_TABLE = schema.invitations
_FIND = select(_TABLE).where(_TABLE.c.secret_sha256 == bindparam("of_secret"))
_USE = update(_TABLE).where(_TABLE.c.secret_sha256 == bindparam("of_secret")).values(used_by=bindparam("to"))


class SqlInvitations:
    """Invitations by the hash of their secret."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, invitation: StoredInvitation) -> None:
        row = {**invitation.__dict__, "expires_at": invitation.expires_at.astimezone(UTC).isoformat()}
        with self._database.writing() as session:
            session.replace(_TABLE, [row])

    def find(self, secret_sha256: bytes) -> StoredInvitation | None:
        with self._database.looking() as session:
            row = session.one(_FIND, of_secret=secret_sha256)
        return None if row is None else StoredInvitation(secret_sha256, datetime.fromisoformat(row[1]), row[2])

    def claim(self, secret_sha256: bytes, device: DeviceId, now: datetime) -> StoredInvitation | None:
        with self._database.writing() as session:
            row = session.one(_FIND, of_secret=secret_sha256)
            if row is None:
                return None
            expires_at, used_by = datetime.fromisoformat(row[1]), row[2]
            if used_by is None and now < expires_at:
                session.run(_USE, of_secret=secret_sha256, to=device)
                used_by = device
            return StoredInvitation(secret_sha256, expires_at, used_by)
