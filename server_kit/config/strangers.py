"""[enrolment]: what a stranger may take at the one port that asks for no certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.config.checking import require

if TYPE_CHECKING:
    from server_kit.daemon.enrolment import EnrolmentSettings


@dataclass(frozen=True)
class Enrolment:
    """[enrolment]: limits for strangers. An address is an IPv4 address or an IPv6 network of 64 bits."""

    message_seconds: float = 10.0
    """A call that has not brought its message within so long is ended; so is a connection without a call."""
    calls_per_address: int = 16
    most_calls: int = 256
    connections_per_address: int = 64
    """Raise this where hundreds of devices behind one address enrol in the same minute."""
    most_connections: int = 1024
    wrong_invitations_a_minute: float = 20.0
    """From one address, and ten times as many in all; a right invitation is taken at any time."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(0 < value < math.inf, f"{name} must be above 0, got {value}")
        require(
            self.connections_per_address <= self.most_connections and self.calls_per_address <= self.most_calls,
            "one address cannot have more than all together; raise most_connections or most_calls",
        )

    def settings(self) -> EnrolmentSettings:
        """As the enrolment desk takes them."""
        from server_kit.daemon.enrolment import EnrolmentSettings

        return EnrolmentSettings(**vars(self))
