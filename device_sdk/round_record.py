"""One round in progress, as it is kept: where it is, what was asked, and what the ledger has of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privacy.canonical import canonical, parse, take_hex, take_list, take_text, take_whole
from privacy.ledger import Reservation


class Phase(StrEnum):
    """How far a round has come, durably."""

    ACCEPTED = "accepted"
    BOOKED = "booked"
    RELEASED = "released"
    UPLOADED = "uploaded"


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
    accepted_at: int
    """Seconds since 1970."""
    phase: Phase = Phase.ACCEPTED
    attempts: int = 0
    """How often training has begun."""
    booking: Reservation | None = None
    release: int | None = None
    """The release's number in the ledger; they are sent in this order."""


def to_document(entry: Round) -> bytes:
    """A round as a vault keeps it."""
    booking = entry.booking
    return canonical(
        {
            "task": entry.task,
            "kind": entry.kind.value,
            "order": entry.order.hex(),
            "accepted_at": entry.accepted_at,
            "phase": entry.phase.value,
            "attempts": entry.attempts,
            "booking": [] if booking is None else [booking.ledger, booking.sequence, booking.request],
            "release": [] if entry.release is None else [entry.release],
        }
    )


def from_document(document: bytes) -> Round:
    """The inverse of `to_document`."""
    fields = parse(document)
    booking, release = take_list(fields, "booking"), take_list(fields, "release")
    return Round(
        task=take_text(fields, "task"),
        kind=Kind(take_text(fields, "kind")),
        order=take_hex(fields, "order"),
        accepted_at=take_whole(fields, "accepted_at"),
        phase=Phase(take_text(fields, "phase")),
        attempts=take_whole(fields, "attempts"),
        booking=Reservation(*booking) if booking else None,
        release=release[0] if release else None,
    )
