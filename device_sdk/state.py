r"""The journal of rounds in progress: what was asked is on disk before anything is done for it.

    accept -> ACCEPTED -> (train) -> BOOKED -> RELEASED -> UPLOADED -> close
                 \______________________\_________\_____________> close, given up

How far a round has come is not written down a second time: the ledger knows it, by the request that the journal notes
when it accepts. It was booked, its bytes are stored, they were acknowledged and forgotten. So there are no two files
that could disagree after a kill: a spend is made once, the noised bytes are those the ledger has sealed, and what
was acknowledged is not sent again. A kill between the acknowledgement and its note sends the same bytes once more,
which a server counts once.

What was trained and not yet noised is never written down: after a kill training begins again, for the spend that
was booked. How often it began is noted first, so that a task which kills the app is given up in the end.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from device_sdk.errors import OutOfOrder, VaultBroken
from device_sdk.events import emit, error_name
from device_sdk.round_record import Kind, Outcome, Phase, Round, from_document, to_document
from device_sdk.tally import Taken, Tally
from privacy.ledger.entries import request_digest

if TYPE_CHECKING:
    from device_sdk.vault import Vault
    from privacy.ledger import Ledger
    from privacy.randomness import NoiseSource
    from privacy.receipts import Countersignature
    from privacy.release import Mechanism, Release, Request

Data = TypeVar("Data")
MOST_REMEMBERED = 1000
"""Tasks that are over and would be recognised; an older one is still stopped by the ledger, which answers it once."""
MOST_AWAITING_FEEDBACK = 16
_SEEN = "tasks"
_MARK_BYTES = 8


class RoundJournal:
    """The rounds in progress of one device at one server. One process at a time drives it (`running`)."""

    def __init__(self, vault: Vault, ledger: Ledger, server: str, clock: Callable[[], float] = time.time) -> None:
        self._vault, self._ledger, self._clock = vault, ledger, clock
        self._opening = ledger.opening
        self._rounds = vault.table(server, "rounds")
        self._seen = vault.table(server, "seen")
        self._tally = Tally(vault, server)
        self._final: set[str] = set()
        """Tasks whose updates will not be judged; they end with an acceptance, in its transaction."""
        self._uploaded: dict[bytes | None, Round] = {}
        """By the document that was accepted: an uploaded round changes no more, and many may wait for feedback."""

    def rounds(self) -> list[Round]:
        """What is in progress, those to be sent first in front; one that does not open is given up, aloud."""
        documents = self._rounds.contents()
        uploaded = {document: self._uploaded.get(document) for document in documents.values()}
        kept = [self._read(task, document) for task, document in documents.items() if uploaded[document] is None]
        there = self._followed([entry for entry in kept if entry is not None])
        self._uploaded = {document: entry for document, entry in uploaded.items() if entry is not None}
        self._uploaded |= {documents[entry.task]: entry for entry in there if entry.phase is Phase.UPLOADED}
        there += [entry for entry in uploaded.values() if entry is not None]
        return sorted(there, key=lambda entry: (entry.release is None, entry.release or 0, entry.accepted_at))

    def find(self, task: str) -> Round | None:
        """One of them; none if it is not in progress."""
        try:
            document = self._rounds.get(task)
        except VaultBroken:
            return self._read(task, None)
        kept = None if document is None else self._read(task, document)
        return None if kept is None else self._followed([kept])[0]

    def awaiting_feedback(self) -> list[Round]:
        """Rounds whose update was acknowledged and not yet judged, oldest first."""
        return [entry for entry in self.rounds() if entry.kind is Kind.TRAINING and entry.phase is Phase.UPLOADED]

    def knows(self, task: str) -> bool:
        """Whether a task is in progress or over already: offered again, it is a replay."""
        return task in self._rounds.contents() or _is_in(self._remembered(), _mark(task))

    def taken(self, purpose: str) -> Taken:
        """How many rounds were accepted for a purpose, today and in all."""
        return self._tally.taken(purpose, self._clock())

    def accept(
        self, task: str, kind: Kind, order: bytes, mechanism: Mechanism[Any], request: Request, *, begun: bool = False
    ) -> Round:
        """Take a round; `OutOfOrder` for a task that is in progress or over. `begun`: training begins right away.

        Rounds for which no feedback will come, and beyond a few those for which none has, are ended to make room.
        """
        digest = _digest(mechanism, request)
        (booked,) = self._ledger.bookings([digest])
        now, attempts = int(self._clock()), int(begun)
        with self._vault.changing(), self._ledger.undisturbed():  # it was asked just now
            # What the journal has forgotten the ledger still knows: an answered request has no other answer.
            if self.knows(task) or (booked is not None and booked.release is not None):
                raise OutOfOrder("this task was taken before; it is not begun a second time")
            over = self._not_to_be_judged()
            for old in over:
                self._close(old, Outcome.FINISHED)
            self._tally.count(request.purpose, now)
            accepted = self._keep(Round(task, kind, order, digest, self._opening, now, attempts))
        self._final -= {old.task for old in over}
        emit("round_accepted", kind=kind.value)
        return accepted.followed(booked)

    def attempt(self, task: str) -> Round:
        """Note that training begins, before it does."""
        with self._vault.changing():
            entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED)
            return self._keep(replace(entry, attempts=entry.attempts + 1))

    def release(
        self, task: str, mechanism: Mechanism[Data], data: Data, *, request: Request, noise: NoiseSource
    ) -> Release:
        """`privacy.release.perform`, for what was accepted and nothing else: book, noise, store."""
        entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED)
        mechanism.check(data)
        self._check_request(entry, _digest(mechanism, request))
        booking = self._ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)
        _advanced(entry, Phase.BOOKED)
        released = self._ledger.settle(booking, mechanism.answer(data, noise))
        _advanced(entry, Phase.RELEASED, released.sequence)
        return released

    def resume(self, task: str) -> Release | None:
        """After a restart: the release that is to be sent, the same bytes; none if it is still to be trained.

        `OutOfOrder` once its bytes are gone, for they were acknowledged or given up.
        """
        entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED, Phase.RELEASED)
        emit("round_found", kind=entry.kind.value, phase=entry.phase.value, attempts=entry.attempts)
        return None if entry.booking is None else self._ledger.stored(entry.booking)

    def uploaded(self, task: str, acknowledgement: Countersignature | None = None, *, final: bool = False) -> None:
        """Keep the server's acknowledgement and let the ledger forget the bytes, together; earlier releases go first.

        After training that is written with the next release, or when the round is closed (`Ledger.keep`, later).
        `final`: nobody will judge it. That is not worth a transaction of its own, so a kill forgets it, and the round
        then waits for feedback as others do.
        """
        there = {entry.task: entry for entry in self.rounds()}
        entry = _due(there.get(task), Phase.RELEASED, Phase.UPLOADED)
        if any(other.phase is Phase.RELEASED and _number(other) < _number(entry) for other in there.values()):
            raise OutOfOrder("an earlier release is still to be sent, and a server takes them in their order")
        if acknowledgement is not None:
            self._ledger.keep(acknowledgement, entry.request, later=entry.kind is Kind.TRAINING)
        elif entry.phase is Phase.RELEASED:
            self._ledger.forget_answer(entry.request)
        if final:
            self._final.add(task)
        _advanced(entry, Phase.UPLOADED, _number(entry))

    def finish(self, task: str) -> None:
        """End a round that was uploaded; together with learning its feedback if inside `vault.changing()`."""
        self._close(self._at(task, Phase.UPLOADED), Outcome.FINISHED)

    def give_up(self, task: str) -> None:
        """End a round that was not uploaded. What it has spent stays spent; what was noised is never sent."""
        entry = self._at(task, Phase.ACCEPTED, Phase.BOOKED, Phase.RELEASED)
        if entry.phase is Phase.RELEASED:
            self._ledger.forget_answer(entry.request)
        self._close(entry, Outcome.GIVEN_UP)

    def _not_to_be_judged(self) -> list[Round]:
        waiting = self.awaiting_feedback()
        judged = [entry for entry in waiting if entry.task not in self._final]
        final = [entry for entry in waiting if entry.task in self._final]
        # One whose acknowledgement goes with the next release is left to the acceptance after this one.
        over = [entry for entry in final if not self._ledger.is_to_be_written(entry.request)]
        return over + judged[:-MOST_AWAITING_FEEDBACK]

    def _check_request(self, entry: Round, digest: str) -> None:
        if entry.request != digest:
            raise OutOfOrder("this round was taken for another request; nothing was booked, noised or released")

    def _close(self, entry: Round, outcome: Outcome) -> None:
        if self._ledger.is_to_be_written(entry.request):
            # First, or a kill would leave bytes in the ledger that no round will send or forget.
            self._ledger.write_acknowledged()
        with self._vault.changing():
            self._rounds.drop(entry.task)
            self._remember(entry.task)
        emit("round_closed", kind=entry.kind.value, phase=entry.phase.value, outcome=outcome.value)

    def _at(self, task: str, *phases: Phase) -> Round:
        return _due(self.find(task), *phases)

    def _read(self, task: str, document: bytes | None) -> Round | None:
        """A round as it was accepted; one that cannot be taken to its end is given up."""
        try:
            entry = None if document is None else from_document(document)
        except ValueError:
            entry = None
        if entry is None:
            self._abandon(task, VaultBroken.__name__)
        elif entry.ledger != self._opening:
            # Whether it was paid for, or sent, is not to be known any more.
            self._abandon(task, "started over")
            return None
        return entry

    def _followed(self, kept: list[Round]) -> list[Round]:
        """Rounds as they were accepted, where the ledger says that they are."""
        booked = self._ledger.bookings([entry.request for entry in kept]) if kept else []
        return [entry.followed(booking) for entry, booking in zip(kept, booked, strict=True)]

    def _abandon(self, task: str, why: str) -> None:
        emit("round_unreadable", error=why)
        with self._vault.changing():
            self._rounds.drop(task)
            self._remember(task)

    def _keep(self, entry: Round) -> Round:
        self._rounds.put(entry.task, to_document(entry))
        return entry

    def _remembered(self) -> bytes:
        """The marks of tasks that are over, oldest first."""
        try:
            return self._seen.get(_SEEN) or b""
        except VaultBroken as error:
            emit("round_unreadable", error=error_name(error))
            return b""

    def _remember(self, task: str) -> None:
        self._seen.put(_SEEN, (self._remembered() + _mark(task))[-MOST_REMEMBERED * _MARK_BYTES :])


def _mark(task: str) -> bytes:
    """What is remembered of a task: enough to tell it from a thousand others, and short, as it is written each time."""
    return hashlib.sha256(task.encode()).digest()[:_MARK_BYTES]


def _is_in(marks: bytes, mark: bytes) -> bool:
    at = marks.find(mark)
    while at % _MARK_BYTES and at >= 0:
        at = marks.find(mark, at + 1)
    return at >= 0


def _due(entry: Round | None, *phases: Phase) -> Round:
    """A round at which a step may be taken that follows these phases."""
    if entry is None or entry.phase not in phases:
        where = "not in progress" if entry is None else f"at {entry.phase!s}"
        raise OutOfOrder(f"this round is {where}, and this step follows {' or '.join(phases)}; nothing was changed")
    return entry


def _digest(mechanism: Mechanism[Any], request: Request) -> str:
    return request_digest(request.server, request.purpose, request.subject, mechanism.name, mechanism.terms)


def _advanced(entry: Round, phase: Phase, release: int = 0) -> None:
    emit("round_advanced", kind=entry.kind.value, phase=phase.value, sequence=release)


def _number(entry: Round) -> int:
    return -1 if entry.release is None else entry.release
