"""Time for deadlines: it reads like Unix time, passes as the monotonic clock does, and never jumps.

The system's clock may be set by a person, by NTP after a long time without a network, or by a virtual machine that
goes on elsewhere. A deadline that followed it would pass at once, or an hour late. So Unix time is looked at once, when
the supervisor starts, and from then on only the monotonic clock is. All processes of a daemon share the difference
between the two, so what one of them writes down another can compare.

What is written down outlives the daemon. At the next start a time that lies in the future was written by a clock that
was ahead; whoever reads it takes it for now (`coordinator.begin`, `LeaseKeeper`).

Certificates, invitations and what people read go by the system's clock.
"""

from __future__ import annotations

import time

_difference_seconds = time.time() - time.monotonic()


def steady_seconds() -> float:
    """Seconds since 1970, as they were at the start of this daemon, plus what has passed since then."""
    return time.monotonic() + _difference_seconds


def difference_seconds() -> float:
    """For a child process to `share`: what this one adds to the monotonic clock, which all of a machine's share."""
    return _difference_seconds


def share(difference: float) -> None:
    """Read the same time as the process that started this one; before anything is timed."""
    global _difference_seconds  # noqa: PLW0603 - a process has one clock
    _difference_seconds = difference
