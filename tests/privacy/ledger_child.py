"""A device in a process of its own, made to be killed.

Run as a script it is a nursery: for each line `HOME HOW FAULT COUNT` on its input it forks a device, prints
the device's process id, and later how it ended. A device releases without end (or COUNT times) and "sends"
each release by appending it, synced, to a file. HOW is `books_first`, as the product does it, or
`books_after_sending`, the broken twin. FAULT names a point at which the device kills itself.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import ClassVar

from privacy.keys import LedgerKeys
from privacy.ledger import Ledger, anchor
from privacy.ledger.anchor import Anchor
from privacy.ledger.entries import Released, Reserved, request_digest
from privacy.ledger.mark import Mark
from privacy.ledger.storage import LedgerStorage
from privacy.randomness import NoiseSource
from privacy.release import Answer, Guarantee, perform
from tests.privacy.ledger_helpers import BUDGET, ask, pure


class Coin:
    """A mechanism whose answers never repeat, so that noising twice would show."""

    name, cost, guarantee = "coin", pure(5), Guarantee("1", "fresh bytes", "none needed")
    terms: ClassVar[dict[str, int | str]] = {"version": 1}

    def check(self, data):
        pass

    def answer(self, data, noise):
        reached("answering")
        return Answer(os.urandom(32))


class Outbox:
    """What has left the device, synced line by line: `request payload-hash`."""

    def __init__(self, path: Path):
        self.path = path

    def send(self, request: str, payload: bytes) -> None:
        reached("before sending")
        with self.path.open("ab") as file:
            file.write(f"{request} {hashlib.sha256(payload).hexdigest()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        reached("after sending")

    def sent(self) -> list[tuple[str, str]]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]
        return [tuple(line.split()) for line in whole.splitlines()]  # type: ignore[misc]


def violations(directory: Path, keys: LedgerKeys, outbox: Outbox) -> list[str]:
    """What the ledger cannot account for of all that was sent. Opening it verifies it."""
    with Ledger.open(directory, keys) as ledger:
        ledger.verify()
        entries, spent = ledger.entries(), ledger.status().spent.pure_micro_epsilon
    reserved = {entry.sequence: entry.event for entry in entries if isinstance(entry.event, Reserved)}
    answers = {
        reserved[entry.event.reserve].request: entry.event.payload_hash
        for entry in entries
        if isinstance(entry.event, Released)
    }
    paid = {event.request for event in reserved.values()}
    found = [f"{request} was sent and not paid for" for request, _ in outbox.sent() if request not in paid]
    found += [
        f"{request} was sent and differs from its entry"
        for request, payload_hash in outbox.sent()
        if answers.get(request) != payload_hash
    ]
    if spent != sum(event.spend.pure_micro_epsilon for event in reserved.values()):
        found.append("the spends do not add up")
    return found


def live(directory: Path, keys: LedgerKeys, outbox: Outbox, how: str, count: int) -> None:
    """One life of a device: open, then release and send, taking up where the last life ended."""
    first = len(outbox.sent())
    with Ledger.open(directory, keys, BUDGET) as ledger:
        for number in range(first, first + count) if count else itertools.count(first):
            request = ask(f"epoch {number}")
            if how == "books_first":
                release = perform(ledger, Coin(), None, request, NoiseSource())
                outbox.send(release.request, release.for_sending())
                if number % 3 == 0:
                    ledger.forget_answer(release.request)
            else:
                answer = Coin().answer(None, None)
                digest = request_digest(request.server, request.purpose, request.subject, Coin.name, Coin.terms)
                outbox.send(digest, answer.payload)
                ledger.settle(ledger.reserve(Coin.name, Coin.terms, Coin.cost, request), answer)


_armed: dict[str, int] = {}


def reached(point: str) -> None:
    """Die here, if this is the point and the time."""
    if point in _armed:
        _armed[point] -= 1
        if _armed[point] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(fault: str) -> None:
    """Let the product's own functions report that they were reached; `fault` is `point` or `point:times`."""
    point, _, times = fault.partition(":")
    _armed[point] = int(times or 1)
    _report(Anchor, "create", after="anchor created")
    _report(LedgerStorage, "create_tables", before="database empty", after="tables drafted")
    _report(LedgerStorage, "append", before="entry due", after="entry drafted")
    _report(LedgerStorage, "keep_answer", after="answer drafted")
    _report(LedgerStorage, "drop_answer", after="answer dropped")
    _report(Anchor, "advance", before="committed", after="anchored")
    _report(Mark, "create", before="mark due", after="mark created")
    _report(Mark, "write", before="mark to be written", after="marked")
    _report(Mark, "sync", before="mark to be synced")
    whole = anchor._write_whole

    def torn(descriptor, content, offset):
        if "anchor torn" in _armed:
            whole(descriptor, content[:200], offset)
            reached("anchor torn")
        whole(descriptor, content, offset)

    anchor._write_whole = torn


def _report(owner: type, name: str, before: str = "", after: str = "") -> None:
    real = owner.__dict__[name]
    function = real.__func__ if isinstance(real, classmethod) else real

    def reporting(*arguments, **named):
        reached(before)
        result = function(*arguments, **named)
        reached(after)
        return result

    setattr(owner, name, classmethod(reporting) if isinstance(real, classmethod) else reporting)


FAULTS = [
    "mark due",
    "mark created",
    "mark due:2",
    "mark created:2",
    "mark to be written",
    "mark to be written:2",
    "mark to be written:3",
    "mark to be synced",
    "marked",
    "marked:2",
    "anchor created",
    "database empty",
    "tables drafted",
    "entry due",
    "entry due:2",
    "entry due:3",
    "entry drafted:2",
    "entry drafted:3",
    "committed",
    "committed:2",
    "anchor torn",
    "anchor torn:2",
    "anchor torn:3",
    "anchored",
    "answering",
    "answer drafted",
    "before sending",
    "after sending",
    "answer dropped",
]


def nursery() -> None:
    for line in sys.stdin:
        home, how, fault, count = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            if fault:
                arm(fault)
            keys = LedgerKeys.from_file(Path(home) / "keys")
            live(Path(home) / "state", keys, Outbox(Path(home) / "sent"), how, int(count))
            os._exit(0)
        os.write(1, f"{child}\n".encode())
        os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())


if __name__ == "__main__":
    nursery()
