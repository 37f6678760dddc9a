"""The store in a database: all its parts on one ground, and what keeps it in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_kit.steady_clock import steady_seconds
from server_kit.store.examining import examine
from server_kit.store.folds import SqlFolds
from server_kit.store.intake import SqlIntake
from server_kit.store.invitations import SqlInvitations
from server_kit.store.leases import SqlLeases
from server_kit.store.lookout import SqlLookout
from server_kit.store.parcels import ORPHAN_SECONDS, sweep
from server_kit.store.quota import devices_over, drop_excess
from server_kit.store.register import SqlRegister
from server_kit.store.rotation import rotate
from server_kit.store.rounds import SqlRounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from server_kit.store.examining import Examined
    from server_kit.store.parts import Ground


class SqlStore(SqlIntake, SqlRounds, SqlFolds, SqlLeases, SqlLookout):
    """What a server must not forget; see `protocol`. Used from several threads of several processes."""

    def __init__(self, ground: Ground, clock: Callable[[], float] = steady_seconds) -> None:
        super().__init__(ground)
        self._clock = clock
        self._register = SqlRegister(ground.database, clock)
        self._invitations = SqlInvitations(ground.database)

    @property
    def register(self) -> SqlRegister:
        return self._register

    @property
    def invitations(self) -> SqlInvitations:
        return self._invitations

    def sweep(self, older_than_seconds: float = ORPHAN_SECONDS) -> int:
        """Delete bytes of updates that belong to nothing, because a process died; returns how many.

        Summaries beyond a quota, which an older version or other settings have kept, go too.
        """
        with self._database.looking() as session:
            over = devices_over(session, self._ground.quota)
        if over:
            with self._database.writing() as session:
                drop_excess(session, over, self._ground.quota)
        return sweep(self._ground, self._clock(), older_than_seconds)

    def rotate(self) -> int:
        """Seal everything under a new key while the server runs, and drop the old; returns how many values."""
        return rotate(self._ground)

    def examine(self) -> Examined:
        """Read everything there is; what cannot be read any more."""
        return examine(self._ground)

    def close(self) -> None:
        self._database.close()
