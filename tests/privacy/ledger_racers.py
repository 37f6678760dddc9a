"""Eight processes let go at the same moment, run as a script: `KIND DIRECTORY KEY_FILE`; prints one outcome a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from privacy.errors import BudgetExhausted
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.release import Answer
from tests.privacy.ledger_helpers import BUDGET, release, reserve

NUM_RACERS, NUM_RELEASES = 8, 12
LAST_UNIT = 1_000
Go = Callable[[], None]


def for_the_last_unit(directory: Path, keys: LedgerKeys, number: int, go: Go) -> str:
    with Ledger.open(directory, keys) as ledger:
        go()
        try:
            reserve(ledger, f"racer {number}", LAST_UNIT)
        except BudgetExhausted:
            return "exhausted"
        return "booked"


def for_the_same(directory: Path, keys: LedgerKeys, number: int, go: Go) -> str:
    """All of them also race to create the ledger."""
    go()
    with Ledger.open(directory, keys, BUDGET) as ledger:
        return ledger.settle(reserve(ledger, "the same"), Answer(os.urandom(32))).payload.hex()


def for_many(directory: Path, keys: LedgerKeys, number: int, go: Go) -> str:
    with Ledger.open(directory, keys, BUDGET) as ledger:
        go()
        for epoch in range(NUM_RELEASES):
            release(ledger, f"racer {number}, epoch {epoch}")
    return "done"


def main(kind: str, directory: Path, key_file: Path) -> None:
    race = {"last unit": for_the_last_unit, "same": for_the_same, "many": for_many}[kind]
    keys = LedgerKeys.from_file(key_file)
    ready_read, ready_write = os.pipe()
    start_read, start_write = os.pipe()

    def go() -> None:
        os.write(ready_write, b"r")
        os.read(start_read, 1)  # returns when the starter closes its end

    children = []
    for number in range(NUM_RACERS):
        child = os.fork()
        if child == 0:
            os.close(start_write)
            os.write(1, f"{race(directory, keys, number, go)}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(ready_write)
    for _ in children:
        os.read(ready_read, 1)
    os.close(start_write)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
