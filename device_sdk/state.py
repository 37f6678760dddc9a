r"""The journal of rounds in progress: where each one is, on disk before the next step is taken.

    accept -> ACCEPTED -> (train) -> BOOKED -> RELEASED -> UPLOADED -> close
                 \______________________\_________\_____________> close, given up

The ledger and the journal are two databases, and the ledger is always first: what it has booked or stored is found
there after a kill, and `resume` brings the journal up to it. So a spend is made once, the noised bytes are those
the ledger has sealed, and what was acknowledged is not sent again. A kill between the acknowledgement and its note
sends the same bytes once more, which a server counts once.

What was trained and not yet noised is never written down: after a kill training begins again, for the spend that
was booked. How often it began is noted first, so that a task which kills the app is given up in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from device_sdk.errors import OutOfOrder, VaultBroken
from device_sdk.events import emit, error_name
from device_sdk.round_record import Kind, Outcome, Phase, Round, from_document, to_document
from privacy.canonical import as_text, canonical, parse, take_list
from privacy.errors import ReleaseRefused
from privacy.ledger.entries import request_digest

if TYPE_CHECKING:
    from device_sdk.vault import Vault
    from privacy.ledger import Ledger, Reservation
    from privacy.randomness import NoiseSource
    from privacy.release import Mechanism, Release, Request

Data = TypeVar("Data")
MOST_REMEMBERED = 1000
"""Tasks that are over and would be recognised; an older one is still stopped by the ledger, which answers it once."""
_SEEN = "tasks"


class RoundJournal:
    """The rounds in progress of one device at one server. One process at a time drives it (`running`)."""

    def __init__(self, vault: Vault, server: str, clock: Callable[[], float] = time.time) -> None:
        self._vault, self._clock = vault, clock
        self._rounds = vault.table(server, "rounds")
        self._seen = vault.table(server, "seen")
        self._uploaded: dict[str, Round] = {}
        """As they were read: an uploaded round changes no more, and many may wait for feedback."""

    def rounds(self) -> list[Round]:
        """What is in progress, those to be sent first in front; one that does not open is given up, aloud."""
        names = self._rounds.names()
        self._uploaded = {task: self._uploaded[task] for task in names if task in self._uploaded}
        found = [self._uploaded.get(task) or self._found(task) for task in names]
        there = [entry for entry in found if entry is not None]
        return sorted(there, key=lambda entry: (entry.release is None, entry.release or 0, entry.accepted_at))

    def knows(self, task: str) -> bool:
        """Whether a task is in progress or over already: offered again, it is a replay."""
        return task in self._rounds.names() or task in self._remembered()

    def accept(self, task: str, kind: Kind, order: bytes) -> Round:
        """Begin a round; `OutOfOrder` for a task that is in progress or over."""
        with self._vault.changing():
            if self.knows(task):
                raise OutOfOrder("this task was taken before; it is not begun a second time")
            accepted = self._keep(Round(task, kind, order, int(self._clock())))
        emit("round_accepted", kind=kind.value)
        return accepted

    def attempt(self, task: str) -> Round:
        """Note that training begins, before it does."""
        with self._vault.changing():
            entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED)
            return self._keep(replace(entry, attempts=entry.attempts + 1))

    def release(
        self, task: str, ledger: Ledger, mechanism: Mechanism[Data], data: Data, *, request: Request, noise: NoiseSource
    ) -> Release:
        """`privacy.release.perform`, with the journal kept in step: book, note, noise, store, note."""
        entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED)
        mechanism.check(data)
        digest = request_digest(request.server, request.purpose, request.subject, mechanism.name, mechanism.terms)
        if entry.booking is not None and entry.booking.request != digest:
            raise OutOfOrder("this round was booked for another request; nothing was booked, noised or released")
        booking = ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)
        self._advance(replace(entry, phase=Phase.BOOKED, booking=booking))
        released = _stored(booking, ledger)
        if released is None:
            released = ledger.settle(booking, mechanism.answer(data, noise))
        self._note_release(task, released)
        return released

    def resume(self, task: str, ledger: Ledger) -> Release | None:
        """After a restart: the release that is to be sent, the same bytes; none if it is still to be trained.

        `OutOfOrder` once it was acknowledged, or its bytes are gone because giving up was interrupted.
        """
        entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED, Phase.RELEASED)
        emit("round_found", kind=entry.kind.value, phase=entry.phase.value, attempts=entry.attempts)
        released = None if entry.booking is None else _stored(entry.booking, ledger)
        if released is not None and entry.phase is not Phase.RELEASED:
            self._note_release(task, released)
        return released

    def uploaded(self, task: str, ledger: Ledger) -> Round:
        """Note the server's acknowledgement, then let the ledger forget the bytes; earlier releases go first."""
        entry = self._at(task, Phase.RELEASED, Phase.UPLOADED)
        if any(other.phase is Phase.RELEASED and _number(other) < _number(entry) for other in self.rounds()):
            raise OutOfOrder("an earlier release is still to be sent, and a server takes them in their order")
        if entry.phase is Phase.RELEASED:
            entry = self._advance(replace(entry, phase=Phase.UPLOADED))
        _forget(entry, ledger)
        return entry

    def finish(self, task: str, ledger: Ledger) -> None:
        """End a round that was uploaded; together with learning its feedback if inside `vault.changing()`."""
        entry = self._at(task, Phase.UPLOADED)
        _forget(entry, ledger)
        self._close(entry, Outcome.FINISHED)

    def give_up(self, task: str, ledger: Ledger) -> None:
        """End a round that was not uploaded. What it has spent stays spent; what was noised is never sent."""
        entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED, Phase.RELEASED)
        _forget(entry, ledger)
        self._close(entry, Outcome.GIVEN_UP)

    def _note_release(self, task: str, released: Release) -> None:
        entry = self._at(task, Phase.BOOKED)
        self._advance(replace(entry, phase=Phase.RELEASED, release=released.sequence))

    def _advance(self, entry: Round) -> Round:
        self._keep(entry)
        emit("round_advanced", kind=entry.kind.value, phase=entry.phase.value, sequence=entry.release or 0)
        return entry

    def _close(self, entry: Round, outcome: Outcome) -> None:
        with self._vault.changing():
            self._rounds.drop(entry.task)
            self._remember(entry.task)
        emit("round_closed", kind=entry.kind.value, phase=entry.phase.value, outcome=outcome.value)

    def _at(self, task: str, *phases: Phase) -> Round:
        entry = self._found(task)
        if entry is None or entry.phase not in phases:
            where = "not in progress" if entry is None else f"at {entry.phase!s}"
            raise OutOfOrder(f"this round is {where}, and this step follows {' or '.join(phases)}; nothing was changed")
        return entry

    def _found(self, task: str) -> Round | None:
        try:
            document = self._rounds.get(task)
        except VaultBroken as error:
            emit("round_unreadable", error=error_name(error))
            with self._vault.changing():
                self._rounds.drop(task)
                self._remember(task)
            return None
        entry = None if document is None else from_document(document)
        if entry is not None and entry.phase is Phase.UPLOADED:
            self._uploaded[task] = entry
        return entry

    def _keep(self, entry: Round) -> Round:
        self._rounds.put(entry.task, to_document(entry))
        return entry

    def _remembered(self) -> list[str]:
        try:
            document = self._seen.get(_SEEN)
        except VaultBroken as error:
            emit("round_unreadable", error=error_name(error))
            return []
        return [] if document is None else [as_text(task) for task in take_list(parse(document), "tasks")]

    def _remember(self, task: str) -> None:
        self._seen.put(_SEEN, canonical({"tasks": [*self._remembered(), task][-MOST_REMEMBERED:]}))


def _forget(entry: Round, ledger: Ledger) -> None:
    if entry.booking is not None:
        # Refused where there is no answer: not yet noised, or a ledger that was started over.
        with suppress(ReleaseRefused):
            ledger.forget_answer(entry.booking.request)


def _stored(booking: Reservation, ledger: Ledger) -> Release | None:
    try:
        return ledger.stored(booking)
    except ReleaseRefused:
        raise OutOfOrder("the bytes of this round are gone; give it up; it is not noised a second time") from None


def _number(entry: Round) -> int:
    return -1 if entry.release is None else entry.release
