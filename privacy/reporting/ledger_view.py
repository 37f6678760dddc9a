"""One device's ledger as a report sees it: believed, read once, and frozen.

Reading raises what the ledger raises: `LedgerTampered` where it cannot be believed, `LedgerUnavailable` where
there is none or it cannot be read now. What is here was checked; nothing is ever shown of a ledger that was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from privacy.accounting.limits import spend_of
from privacy.errors import BudgetExhausted
from privacy.ledger import Ledger
from privacy.ledger.entries import BEFORE_GENESIS, Decided, Opened, Released, Reserved, link

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privacy.accounting.limits import BudgetLimits, Spend
    from privacy.budget import PrivacyBudget, PrivacyCost
    from privacy.ledger.checks import Verification
    from privacy.ledger.entries import Entry
    from privacy.ledger.excerpts import Excerpt
    from privacy.ledger.status import LedgerStatus


@dataclass(frozen=True)
class Booking:
    """A spend, and the release that came of it, if one did."""

    sequence: int
    at: int
    mechanism: str
    purpose: str
    server: str
    request: str
    cost: PrivacyCost
    spend: Spend
    release: int | None
    """The number of the entry that holds the release; none where nothing was answered."""
    payload_hash: str | None
    seeded: bool


@dataclass(frozen=True)
class Decision:
    """What a person wrote into the ledger, and when."""

    at: int
    reason: str


@dataclass(frozen=True)
class LedgerView:
    """A ledger that was read and believed."""

    place: str
    device_key: str
    status: LedgerStatus
    verification: Verification | None
    """What a full check found; none where only the chain, its signatures and the anchor were checked."""
    opened: Opened
    first: int
    bookings: tuple[Booking, ...]
    decisions: tuple[Decision, ...]
    digests: tuple[bytes, ...]
    excerpts: dict[str, Excerpt]
    """What servers were shown of it, by the name they know it by."""

    @property
    def id(self) -> str:
        return self.opened.ledger

    @property
    def budget(self) -> PrivacyBudget:
        return self.opened.budget

    @property
    def started_over(self) -> bool:
        """Whether this ledger continues one that could not be believed any more."""
        return bool(self.opened.predecessor)

    @property
    def unsettled(self) -> tuple[Booking, ...]:
        """Spends that were booked and never answered; they count."""
        return tuple(booking for booking in self.bookings if booking.release is None)

    @cached_property
    def releases(self) -> dict[int, Booking]:
        """By the number of the release's own entry."""
        return {booking.release: booking for booking in self.bookings if booking.release is not None}

    @cached_property
    def booking_faults(self) -> tuple[str, ...]:
        """Where the ledger counts less than its releases cost. Only a holder of the device's keys can write one so."""
        limits, budget, faults = self.status.limits, self.budget, []
        if not _keep(limits, budget):
            faults.append(f"its limits allow more than the ε={budget.epsilon:g} of its budget")
        short = [booking.sequence for booking in self.bookings if not _covers(booking, limits)]
        if short:
            entries = "1 entry" if len(short) == 1 else f"{len(short):,} entries"
            faults.append(f"{entries} booked less than the cost comes to, first entry {short[0]}")
        return tuple(faults)

    def digest_at(self, sequence: int) -> bytes | None:
        """The hash of an entry; none for a number outside this chain."""
        place = sequence - self.first
        return self.digests[place] if 0 <= place < len(self.digests) else None


def read_ledger(directory: Path, *, device_key: bytes | None = None, in_full: bool = False) -> LedgerView:
    """The ledger in `directory`; `in_full` also reads every page and every stored answer."""
    with Ledger.read(directory, device_key=device_key) as ledger:
        verification = ledger.verify() if in_full else None
        return _view(str(directory), ledger, verification)


def _view(place: str, ledger: Ledger, verification: Verification | None) -> LedgerView:
    entries = ledger.entries()
    opened = entries[0].event
    if not isinstance(opened, Opened):
        raise TypeError("a ledger that was believed begins with its opening entry")
    return LedgerView(
        place=place,
        device_key=ledger.device_key.hex(),
        status=ledger.status(),
        verification=verification,
        opened=opened,
        first=entries[0].sequence,
        bookings=_bookings(entries),
        decisions=tuple(
            Decision(entry.at, entry.event.reason) for entry in entries if isinstance(entry.event, Decided)
        ),
        digests=_digests(entries),
        excerpts=ledger.excerpts,
    )


def _bookings(entries: Sequence[Entry]) -> tuple[Booking, ...]:
    answers = {
        entry.event.reserve: (entry.sequence, entry.event) for entry in entries if isinstance(entry.event, Released)
    }
    found = []
    for entry in entries:
        event = entry.event
        if isinstance(event, Reserved):
            release, answer = answers.get(entry.sequence, (None, None))
            found.append(
                Booking(
                    sequence=entry.sequence,
                    at=entry.at,
                    mechanism=event.mechanism,
                    purpose=event.purpose,
                    server=event.server,
                    request=event.request,
                    cost=event.cost,
                    spend=event.spend,
                    release=release,
                    payload_hash=answer.payload_hash if answer else None,
                    seeded=answer.seeded if answer else False,
                )
            )
    return tuple(found)


def _digests(entries: Sequence[Entry]) -> tuple[bytes, ...]:
    digests, previous = [], BEFORE_GENESIS
    for entry in entries:
        previous = link(previous, entry.body())
        digests.append(previous)
    return tuple(digests)


def _keep(limits: BudgetLimits, budget: PrivacyBudget) -> bool:
    try:
        return limits.epsilon(budget.delta) <= budget.epsilon * (1 + 1e-9)
    except (ArithmeticError, ValueError):  # limits that make no sense keep nothing
        return False


def _covers(booking: Booking, limits: BudgetLimits) -> bool:
    try:
        due = spend_of(booking.cost, limits)
    except (BudgetExhausted, ArithmeticError, ValueError):  # a cost that makes no sense is covered by nothing
        return False
    spend = booking.spend
    return (
        spend.pure_micro_epsilon >= due.pure_micro_epsilon
        and spend.mu_squared_nano >= due.mu_squared_nano
        and spend.renyi_nano >= due.renyi_nano
    )
