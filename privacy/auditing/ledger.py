"""Two promises of the path from data to release that no noise can make good, checked on a real ledger.

    resends   an equal request gets equal bytes and is paid for once: else an onlooker averages the noise away
    booking   the spend is on disk before the mechanism sees the data: else a crash leaves a release unpaid

Each check makes releases of its own through `perform`, or through what is given in its place. They spend
budget like any other, so the ledger should be one that was made for the purpose.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.ledger.entries import Entry, Reserved
from privacy.randomness import NoiseSource
from privacy.release import Answer, Guarantee, Mechanism, Release, Request, perform

if TYPE_CHECKING:
    from privacy.budget import PrivacyCost
    from privacy.ledger import Ledger

Performs = Callable[["Ledger", Mechanism[Any], Any, Request, NoiseSource], Release]
"""How a device releases: `privacy.release.perform`, or what is to be tested against it."""


@dataclass(frozen=True)
class Finding:
    """Whether a promise was kept, and what was seen."""

    promise: str
    kept: bool
    seen: str

    def __str__(self) -> str:
        return f"{self.promise}: {'no fault seen' if self.kept else 'BROKEN'} ({self.seen})"


def audit_resends(
    ledger: Ledger, mechanism: Mechanism[Any], data: Any, *, times: int = 20, performs: Performs = perform
) -> Finding:
    """Ask the same thing `times` times."""
    request = _new_request("resends")
    before = _bookings(ledger.entries())
    noise = NoiseSource()
    answers = {performs(ledger, mechanism, data, request, noise).payload for _ in range(times)}
    booked = _bookings(ledger.entries()) - before
    return Finding(
        "an equal request gets equal bytes, once paid for",
        kept=len(answers) == 1 and booked == 1,
        seen=f"{times} equal requests, {len(answers)} different answers, {booked} spends booked",
    )


def audit_booking(
    ledger: Ledger,
    mechanism: Mechanism[Any],
    data: Any,
    *,
    entries_on_disk: Callable[[], Sequence[Entry]],
    performs: Performs = perform,
) -> Finding:
    """Look at the disk at the moment in which the mechanism is asked to answer.

    `entries_on_disk` opens the ledger afresh, as a reader after a crash would: what this process holds in
    memory counts for nothing.
    """
    before = _bookings(entries_on_disk())
    witness = _Witness(mechanism, lambda: _bookings(entries_on_disk()) - before)
    performs(ledger, witness, data, _new_request("booking"), NoiseSource())
    return Finding(
        "a spend is on disk before the data are read",
        kept=bool(witness.booked) and all(booked >= 1 for booked in witness.booked),
        seen=f"at each answer {witness.booked or 'none made'} spends were on disk",
    )


class _Witness:
    """The mechanism itself, but for noting how many spends are booked whenever it answers."""

    def __init__(self, mechanism: Mechanism[Any], bookings: Callable[[], int]) -> None:
        self._mechanism = mechanism
        self._bookings = bookings
        self.booked: list[int] = []

    @property
    def name(self) -> str:
        return self._mechanism.name

    @property
    def terms(self) -> dict[str, int | str]:
        return self._mechanism.terms

    @property
    def cost(self) -> PrivacyCost:
        return self._mechanism.cost

    @property
    def guarantee(self) -> Guarantee:
        return self._mechanism.guarantee

    def check(self, data: Any) -> None:
        self._mechanism.check(data)

    def answer(self, data: Any, noise: NoiseSource) -> Answer:
        self.booked.append(self._bookings())
        return self._mechanism.answer(data, noise)


def _new_request(purpose: str) -> Request:
    return Request("audit", purpose, os.urandom(16).hex())


def _bookings(entries: Sequence[Entry]) -> int:
    return sum(1 for entry in entries if isinstance(entry.event, Reserved))
