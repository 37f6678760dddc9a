"""A device on a disk that fills up or fails to sync, run as a script: `KIND DIRECTORY [SWITCH]`.

It exits with 0 if every failure was `LedgerUnavailable`, nothing was booked or stored by a failed attempt,
the failed ledger refused to go on, and a ledger opened once the disk is well again goes on.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

from privacy.errors import LedgerUnavailable
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.release import Answer
from tests.privacy.ledger_helpers import BUDGET, release, reserve

COST = 1_000
KEYS = LedgerKeys.generate()


def until_it_fails(ledger: Ledger, payload: bytes) -> int:
    """Release until the disk says no; returns how many were acknowledged."""
    for number in range(10_000):
        try:
            release(ledger, f"epoch {number}", payload)
        except LedgerUnavailable as error:
            check("nothing was released" in str(error), "the error says what became of the data")
            return number
    raise SystemExit("the disk never failed")


def check_dead(ledger: Ledger) -> None:
    """After a failure, not even a well disk makes this ledger go on."""
    for attempt in (lambda: reserve(ledger, "after the failure"), ledger.status):
        try:
            attempt()
        except LedgerUnavailable as error:
            check("open it again" in str(error), "the error says what to do")
        else:
            raise SystemExit("a ledger went on after a failed commit")


def check_goes_on(directory: Path, acknowledged: int) -> None:
    with Ledger.open(directory, KEYS) as ledger:
        ledger.verify()
        spent = ledger.status().spent.pure_micro_epsilon
        # The last attempt failed in `reserve` (booked nothing) or in `settle` (its spend was booked before).
        check(spent in (acknowledged * COST, (acknowledged + 1) * COST), "spent exactly what was booked")
        check(ledger.stored(reserve(ledger, f"epoch {acknowledged}")) is None, "the failed answer was not stored")
        release(ledger, f"epoch {acknowledged}")
        check(ledger.status().spent.pure_micro_epsilon == (acknowledged + 1) * COST, "paid for once")


def full(directory: Path) -> None:
    """A file system with little room, part of which is freed later."""
    ballast = directory / "ballast"
    ballast.write_bytes(b"\0" * 200_000)
    ledger = Ledger.open(directory / "state", KEYS, BUDGET)
    acknowledged = until_it_fails(ledger, b"noised" * 2_000)
    ballast.unlink()
    check_dead(ledger)
    ledger.close()
    check_goes_on(directory / "state", acknowledged)


def limited(directory: Path) -> None:
    """A limit on the size of files, which is raised later."""
    ledger = Ledger.open(directory / "state", KEYS, BUDGET)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    acknowledged = until_it_fails(ledger, b"noised" * 2_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check_dead(ledger)
    ledger.close()
    check_goes_on(directory / "state", acknowledged)


def unsynced(directory: Path, switch: Path) -> None:
    """A disk whose syncs fail while `switch` exists (failing_sync.c)."""
    ledger = Ledger.open(directory / "state", KEYS, BUDGET)
    for number in range(3):
        release(ledger, f"epoch {number}")
    switch.touch()
    check(until_it_fails_at(ledger, 3), "a failed sync is an error")
    switch.unlink()
    check_dead(ledger)
    ledger.close()
    check_goes_on(directory / "state", 3)


def until_it_fails_at(ledger: Ledger, number: int) -> bool:
    try:
        ledger.settle(reserve(ledger, f"epoch {number}"), Answer(b"noised"))
    except LedgerUnavailable:
        return True
    return False


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"violated: {what}")


if __name__ == "__main__":
    disks: dict[str, Callable[..., None]] = {"full": full, "limited": limited, "unsynced": unsynced}
    disks[sys.argv[1]](*map(Path, sys.argv[2:]))
