"""One round in progress: what was asked, as the vault keeps it, and how far the ledger says that it has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from privacy.canonical import canonical, parse, take_hex, take_text, take_whole

if TYPE_CHECKING:
    from privacy.ledger import Booking, Reservation

_MOST_PARSED = 128


class Phase(StrEnum):
    """How far a round has come, durably."""

    ACCEPTED = "accepted"
    BOOKED = "booked"
    RELEASED = "released"
    UPLOADED = "uploaded"
    """Its bytes are gone from here: acknowledged, or given up by a process that was killed just then."""


UNFINISHED = frozenset({Phase.ACCEPTED, Phase.BOOKED})
"""Phases in which there is nothing to send yet."""


class Kind(StrEnum):
    """What a round is about: a trained update, or a summary of the data, answers to questions among them."""

    TRAINING = "training"
    SUMMARY = "summary"


class Outcome(StrEnum):
    """How a round ended."""

    FINISHED = "finished"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class Round:
    """One round in progress."""

    task: str
    kind: Kind
    order: bytes
    """What was asked for, as the runtime encodes it, so that it can go on after a restart."""
    request: str
    """What the ledger knows it by (`privacy.ledger.entries.request_digest`)."""
    ledger: str
    """The ledger that is to pay for it (`Ledger.opening`)."""
    accepted_at: int
    """Seconds since 1970."""
    attempts: int = 0
    """How often training has begun."""
    phase: Phase = Phase.ACCEPTED
    booking: Reservation | None = None
    release: int | None = None
    """The release's number in the ledger; they are sent in this order."""

    def left_seconds(self, deadline_seconds: float, now_seconds: float) -> float:
        """What is left of its time; all of it when it has just been accepted, though whole seconds are written down."""
        return min(deadline_seconds, self.accepted_at + 1 + deadline_seconds - now_seconds)

    def followed(self, booking: Booking | None) -> Round:
        """This round where the ledger says that it is."""
        if booking is None:
            return self
        if booking.release is None:
            return replace(self, phase=Phase.BOOKED, booking=booking.reservation)
        phase = Phase.RELEASED if booking.is_kept else Phase.UPLOADED
        return replace(self, phase=phase, booking=booking.reservation, release=booking.release)


def to_document(entry: Round) -> bytes:
    """A round as a vault keeps it; how far it has come stands in the ledger alone."""
    return canonical(
        {
            "task": entry.task,
            "kind": entry.kind.value,
            "order": entry.order.hex(),
            "request": entry.request,
            "ledger": entry.ledger,
            "accepted_at": entry.accepted_at,
            "attempts": entry.attempts,
        }
    )


@lru_cache(maxsize=_MOST_PARSED)  # many may wait for feedback, and all are looked at in every round
def from_document(document: bytes) -> Round:
    """The inverse of `to_document`; `ValueError` for anything else."""
    fields = parse(document)
    return Round(
        task=take_text(fields, "task"),
        kind=Kind(take_text(fields, "kind")),
        order=take_hex(fields, "order"),
        request=take_text(fields, "request"),
        ledger=take_text(fields, "ledger"),
        accepted_at=take_whole(fields, "accepted_at"),
        attempts=take_whole(fields, "attempts"),
    )
