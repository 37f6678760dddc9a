"""Wrong invitations: so many from a network and so many in all are told why, and what goes beyond is told to wait.

A right invitation is found before anything is counted, so nobody can be locked out by the guesses of others, not even
behind the same address. A guesser gains nothing by that: a secret has 256 bits. What the limit saves is work
and lines in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import ErrorCode
from server_kit.token_bucket import TokenBucket, TokenBuckets

log = logging.getLogger("covey.server")

WRONG_INVITATION = (ErrorCode.INVITATION_UNKNOWN, ErrorCode.INVITATION_USED, ErrorCode.INVITATION_EXPIRED)
_IN_ALL = 10
"""All networks together may be wrong so many times as often as one."""
_TOLD_EVERY_SECONDS = 60.0
_WAIT_SECONDS = 60.0


@dataclass
class WrongInvitations:
    """Counts what was wrong, by network. For one thread: the event loop's."""

    a_minute: float
    clock: Callable[[], float] = time.monotonic
    unheard: int = 0
    """How many wrong ones were told to wait, since the start."""
    _by_network: TokenBuckets = field(init=False)
    _in_all: TokenBucket = field(init=False)
    _told_at: float = -float("inf")

    def __post_init__(self) -> None:
        self._by_network = TokenBuckets(self.a_minute, self.a_minute / 60, clock=self.clock)
        self._in_all = TokenBucket(_IN_ALL * self.a_minute, _IN_ALL * self.a_minute / 60, self.clock)

    def may_be_told(self, network: str) -> bool:
        """Whether a network that showed one more wrong invitation is told what is wrong with it."""
        if self._by_network.take(network) and self._in_all.take():
            return True
        self.unheard += 1
        if self.clock() - self._told_at >= _TOLD_EVERY_SECONDS:
            self._told_at = self.clock()
            fields = {"peer": network, "times": self.unheard}
            log.warning("too many wrong invitations come; those beyond the limit are told to wait", extra=fields)
        return False


def too_many_wrong() -> Refused:
    """What is said instead."""
    return Refused(
        ErrorCode.TOO_MANY_CALLS,
        "too many wrong invitations came from this address; wait a minute; nobody was enrolled",
        _WAIT_SECONDS,
    )
