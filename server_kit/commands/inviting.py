"""`covey server invite`: one line for each device that may come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from server_kit.daemon.invitations import Invitations

if TYPE_CHECKING:
    from server_kit.commands.opened import Opened


@dataclass(frozen=True)
class Invited:
    """Invitations that nobody can be shown again: only their hashes are kept."""

    server: str
    expires_at: datetime
    invitations: tuple[str, ...]
    training: str

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "format": "covey-server-invite-1",
            "server": self.server,
            "expires_at": self.expires_at.isoformat(timespec="seconds"),
            "training": self.training,
            "invitations": list(self.invitations),
        }

    def text(self) -> str:
        return "\n".join(self.invitations)

    @property
    def advice(self) -> str:
        """How each is used."""
        return (
            f"each lets one device in until {self.expires_at:%Y-%m-%d %H:%M} UTC: covey device enrol --server "
            f"{self.server} --invitation - --state STATE --training {self.training}"
        )


def invite(federation: Opened, count: int, days: float) -> Invited:
    """Mint so many invitations, good for so many days."""
    listen, lifetime = federation.home.config.listen, timedelta(days=days)
    authority = federation.home.authority()
    invitations = Invitations(federation.store.invitations)
    minted = [
        invitations.mint(listen.enrolment_address, authority.fingerprint, lifetime).to_text() for _ in range(count)
    ]
    return Invited(
        str(listen.enrolment_address),
        datetime.now(UTC) + lifetime,
        tuple(minted),
        federation.home.config.privacy.level,
    )
