"""The privacy ledger: what this device has released, written down before it is released.

    reserve: the spend is on disk  ->  the mechanism draws noise and reads the data
      ->  settle: the answer is on disk, sealed  ->  send

There is one ledger for the device, over all servers, tasks and purposes. A spend counts from `reserve` on and
is never refunded: after a crash we may have charged for a release that never happened, never the reverse.
The same request is the same reservation and has one answer, so a retry re-sends the same bytes for nothing.

Entries are chained by hash and the end is signed; a second file (`privacy.ledger.anchor`), a sealed mark
(`privacy.ledger.mark`) and the servers' countersignatures say how far the chain had come. A ledger that was altered,
cut, rolled back, exchanged or lost has no budget left until a person decides (`privacy.ledger.recovery`). What no file
can prevent is that mark and ledger are set back together, by someone who kept older copies of both; it is noticed at
the next contact with a server that has seen more (`keep`).

A server is shown an excerpt of its own (`shown_at`, `privacy.ledger.excerpts`).

A ledger may be used by many threads and many processes at once; after a fork, open it anew.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from privacy.accounting.limits import spend_of
from privacy.durable import make_directory
from privacy.errors import InvalidTerms, LedgerUnavailable, ReleaseRefused
from privacy.ledger.admission import WHOLE_SHARE_PPM, admit
from privacy.ledger.checks import Verification, check_reached, open_checked
from privacy.ledger.entries import (
    Decided,
    Entry,
    QuotaSet,
    Released,
    Reserved,
    request_digest,
    terms_digest,
)
from privacy.ledger.excerpts import Face
from privacy.ledger.files import (
    LOCK_TIMEOUT_SECONDS,
    LedgerFiles,
    closing_on_failure,
    create,
    first_opening,
    unavailable,
)
from privacy.ledger.mark import Mark, Reached
from privacy.ledger.session import Acknowledged, LedgerSession
from privacy.ledger.status import LedgerStatus
from privacy.ledger.storage import tampered
from privacy.ledger.terms import check_name, same_terms
from privacy.ledger.upgrading import upgrade
from privacy.release import Release
from privacy.sealing import open_sealed, place, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from privacy.budget import PrivacyBudget, PrivacyCost
    from privacy.keys import LedgerKeys, ShownKey
    from privacy.ledger.checks import OpenLedger
    from privacy.ledger.entries import Head
    from privacy.ledger.excerpts import Excerpt
    from privacy.ledger.state import LedgerState
    from privacy.ledger.storage import LedgerStorage
    from privacy.receipts import Countersignature
    from privacy.release import Answer, Request

__all__ = ["Booking", "Ledger", "LedgerStatus", "Reservation"]


@dataclass(frozen=True)
class Reservation:
    """A booked spend: the right to one answer. Only `Ledger.reserve` makes one."""

    ledger: str
    sequence: int
    request: str


@dataclass(frozen=True)
class Booking:
    """What became of a request that was booked."""

    reservation: Reservation
    release: int | None
    """The number of its release; none if it has no answer yet."""
    is_kept: bool
    """Whether the answer is still stored: once it was acknowledged, or given up, it is forgotten."""


class Ledger:
    """The open ledger of one device. `open` and `read` are the ways in."""

    def __init__(self, session: LedgerSession, shown: ShownKey | None = None) -> None:
        self._session, self._shown = session, shown

    @classmethod
    def open(
        cls,
        directory: Path,
        keys: LedgerKeys,
        budget: PrivacyBudget | None = None,
        *,
        clock: Callable[[], float] = time.time,
        lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
        is_known: bool = False,
    ) -> Self:
        """The ledger in `directory`, verified; a new one with `budget` where there never was one.

        `is_known`: whoever keeps the keys knows that the ledger's mark was made, so one without it was taken away.
        """
        if budget is not None:
            with unavailable("created"):
                make_directory(directory)
        files = LedgerFiles(directory, lock_timeout_seconds)
        with closing_on_failure(files):
            with files.locked():
                if is_known and not files.mark.exists():
                    raise tampered("its mark is missing")
                parts = open_checked(files, keys.public_key, marking=keys.marking)
                if parts is None:
                    create(files, keys, [Entry(0, max(0, int(clock())), first_opening(_needed(budget), keys))])
                    parts = open_checked(files, keys.public_key, marking=keys.marking)
                if parts is None:
                    raise tampered("it vanished while it was created")
                with closing_on_failure(parts):
                    mark = _marked(files, keys, parts)
            session = LedgerSession(files, parts, keys, clock, mark=mark)
        ledger = cls(session)
        with closing_on_failure(ledger):
            ledger._check_budget(budget)
            if parts.torn:
                session.mend_anchor()
        return ledger

    @classmethod
    def read(cls, directory: Path, *, device_key: bytes | None = None) -> Self:
        """The ledger in `directory`, verified and read-only.

        Without `device_key` it is checked against the key it names itself, which whoever forged all of
        it would have replaced too; give the key where the device is known.
        """
        files = LedgerFiles(directory, LOCK_TIMEOUT_SECONDS)
        with closing_on_failure(files):
            with files.locked():
                parts = open_checked(files, device_key, read_only=True)
            if parts is None:
                raise LedgerUnavailable("there is no ledger in this directory; nothing was opened")
        return cls(LedgerSession(files, parts, None, time.time))

    @property
    def _state(self) -> LedgerState:
        return self._session.state

    @property
    def _storage(self) -> LedgerStorage:
        return self._session.storage

    @property
    def id(self) -> str:
        return self._state.opened.ledger

    @property
    def opening(self) -> str:
        """The hash of the opening entry: another one once a person has started over."""
        return self._state.digests[0].hex()

    @property
    def budget(self) -> PrivacyBudget:
        return self._state.opened.budget

    @property
    def device_key(self) -> bytes:
        """The public key that signs receipts: the one that is shown (`shown_at`), or else the ledger's own."""
        if self._shown is not None:
            return self._shown.signing.public_key
        return bytes.fromhex(self._state.opened.device_key)

    @property
    def excerpts(self) -> dict[str, Excerpt]:
        """What servers are shown of this ledger, by the name they know it by."""
        with self._session.knowing():
            return dict(self._state.excerpts.by_ledger)

    def shown_at(self, place: str | None) -> Ledger:
        """The same ledger, of which a server is shown an excerpt; `place` is the device's name for that server.

        What is reserved by it goes into that excerpt: under a key and a name that no other server sees, and under
        numbers that count nothing else. None for a server that is shown the ledger itself. Closing one closes both.
        """
        return Ledger(self._session, None if place is None else self._session.keys.shown_at(place))

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, this thread is told what this process knows, without asking whether another has written.

        For requests that nobody else makes. Booking, and all other writing, is decided on what the disk holds.
        """
        with self._session.undisturbed():
            yield

    def reserve(
        self, mechanism_name: str, terms: dict[str, int | str], cost: PrivacyCost, request: Request
    ) -> Reservation:
        """Book `cost` durably, before any noise is drawn; an equal request was booked already and costs nothing."""
        for text in (mechanism_name, request.server, request.purpose):
            check_name(text)
        digest = request_digest(request.server, request.purpose, request.subject, mechanism_name, terms)
        # Before the lock: the spend of a DP-SGD run takes longer to compute than to book.
        spend = spend_of(cost, self._state.opened.limits)
        with self._session.writing(booking=True) as draft:
            sequence = self._state.requests.get(digest)
            if sequence is not None:
                return self._again(sequence, cost)
            spent, spent_by_server = admit(self._state, mechanism_name, request.server, spend)
            sequence = draft.append(
                Reserved(
                    mechanism=mechanism_name,
                    terms=terms_digest(mechanism_name, terms),
                    cost=cost,
                    purpose=request.purpose,
                    server=request.server,
                    request=digest,
                    spend=spend,
                    spent=spent,
                    spent_by_server=spent_by_server,
                    shown="" if self._shown is None else self.device_key.hex(),
                )
            )
        return Reservation(self.id, sequence, digest)

    def settle(self, reservation: Reservation, answer: Answer) -> Release:
        """Store the answer to a reservation, sealed and durably; if there is one already, that one is returned."""
        keys = self._session.keys
        sealed = seal(keys.sealing, answer.payload, self._place(reservation))
        release = Released(
            reserve=reservation.sequence,
            payload_hash=hashlib.sha256(answer.payload).hexdigest(),
            sealed_hash=hashlib.sha256(sealed).hexdigest(),
            seeded=answer.seeded,
        )
        with self._session.writing() as draft:
            self._check_ours(reservation)
            first = self._stored(reservation)
            if first is not None:
                return first
            sequence = draft.append(release)
            draft.keep_answer(reservation.sequence, sealed)
        return self._release(sequence, answer.payload)

    def bookings(self, requests: Iterable[str]) -> list[Booking | None]:
        """What became of each of these requests (`Release.request`); none for one that was never booked."""
        with self._session.knowing():
            return [self._booking(request) for request in requests]

    def stored(self, reservation: Reservation) -> Release | None:
        """The answer to a reservation, if it was settled; `ReleaseRefused` if it was since forgotten."""
        with self._session.reading():
            self._check_ours(reservation)
            return self._stored(reservation)

    def forget_answer(self, request: str) -> None:
        """Drop the stored answer to a request (`Release.request`) that its server has acknowledged.

        The entry stays, so the same request is never noised a second time.
        """
        with self._session.writing() as draft:
            draft.drop_answer(self._answered(request))

    def set_quota(self, server: str, share_ppm: int) -> None:
        """Let `server` use at most `share_ppm` millionths of every limit, counting what it has used already."""
        check_name(server)
        if not 0 <= share_ppm <= WHOLE_SHARE_PPM:
            raise InvalidTerms(
                f"a quota lies between 0 and {WHOLE_SHARE_PPM} ppm, got {share_ppm}; nothing was changed"
            )
        with self._session.writing() as draft:
            if self._state.quotas.get(server) != share_ppm:
                draft.append(QuotaSet(server, share_ppm))

    def record_decision(self, reason: str) -> None:
        """Write down what a person decided about this ledger, and why. It changes no sum."""
        check_name(reason)
        with self._session.writing() as draft:
            draft.append(Decided(reason))

    def keep(self, countersignature: Countersignature, acknowledged: str | None = None, *, later: bool = False) -> None:
        """Remember how far a server has seen this ledger; `LedgerTampered` if that is further than it reaches.

        The proof is the device's own signature of that entry, so a server cannot claim a rollback that
        never was. It is stored first, so that every later opening is refused too. Whether the server's key
        is the pinned one is for `check_contact` to say. The answer to the request that was `acknowledged` by it
        is forgotten in the same transaction.

        `later`: an answer that was the last to be released here is forgotten with the next transaction that is not
        a booking, or with `write_acknowledged`. A kill in between leaves it to be sent again, the same bytes.
        """
        countersignature.check_server()
        is_last = countersignature.entry == self._session.signed
        with self._session.knowing():
            excerpt = self._excerpt(countersignature.ledger)
            ledger, key = self.id, self._state.opened.device_key
        if not is_last:  # what was signed here needs no check
            name, signer = (ledger, key) if excerpt is None else (excerpt.ledger, excerpt.device_key)
            countersignature.check_device(name, bytes.fromhex(signer))
        with self._session.guarded():
            reserve = None if acknowledged is None else self._answered(acknowledged)
            with self._session.acknowledging(Acknowledged(countersignature, reserve)):
                if later and is_last:
                    return
                self._session.write_acknowledged()
            check_reached(self._state, excerpt, countersignature)

    def write_acknowledged(self) -> None:
        """Have on disk what `keep` was allowed to put off."""
        with self._session.guarded():
            self._session.write_acknowledged()

    def is_to_be_written(self, request: str) -> bool:
        """Whether the answer to a request was acknowledged and that is not on disk yet."""
        with self._session.guarded():
            return self._session.is_acknowledged(self._state.requests.get(request, -1))

    def entries(self) -> list[Entry]:
        """Every entry, oldest first."""
        with self._session.reading():
            return [Entry.from_body(row.body) for row in self._storage.rows_after(-1)]

    def status(self) -> LedgerStatus:
        with self._session.knowing():
            return LedgerStatus.of(self._state)

    def verify(self) -> Verification:
        """Read everything anew, every page and stored answer; raise `LedgerTampered` at the first thing wrong."""
        return self._session.verify()

    def face_of(self, release: Release) -> Face:
        """`release` as its server is shown it; `ReleaseRefused` if this ledger did not make it."""
        last = self._session.last
        is_last = last is not None and last.sequence == release.sequence
        # Whatever others have written since the last entry of this session, it comes after it.
        with self._session.guarded() if is_last else self._session.knowing():
            self._check_made_here(release)
            return self._face(release.sequence)

    def note_signed(self, release: Release, head: Head) -> None:
        """Remember what was signed for the last release here, so that it need not be checked when it comes back."""
        last = self._session.last
        if last is not None and last.sequence == release.sequence:
            self._session.signed = head

    def close(self) -> None:
        """Make the anchor durable and let go of the files; closing twice is harmless."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_budget(self, budget: PrivacyBudget | None) -> None:
        if budget is not None and not same_terms(budget, self.budget):
            raise InvalidTerms(
                f"this ledger was created with ε={self.budget.epsilon:g}, δ={self.budget.delta:g} "
                f"({self.budget.training}, {self.budget.relation}), and a budget never changes; "
                "open it with that one or with none; nothing was opened"
            )

    def _again(self, sequence: int, cost: PrivacyCost) -> Reservation:
        reserved = self._state.reserved[sequence]
        if reserved.cost != cost:
            raise InvalidTerms(
                f"{reserved.mechanism} was booked for this request at another cost; equal terms must cost the same; "
                "nothing was booked"
            )
        return Reservation(self.id, sequence, reserved.request)

    def _booking(self, request: str) -> Booking | None:
        sequence = self._state.requests.get(request)
        if sequence is None:
            return None
        is_kept = sequence in self._session.answered and not self._session.is_acknowledged(sequence)
        return Booking(Reservation(self.id, sequence, request), self._state.released.get(sequence), is_kept)

    def _answered(self, request: str) -> int:
        """The reservation of a request that has an answer, kept or forgotten."""
        reserve = self._state.requests.get(request)
        if reserve is None or reserve not in self._state.released:
            raise ReleaseRefused("this request has no answer that could be forgotten; nothing was changed")
        return reserve

    def _check_ours(self, reservation: Reservation) -> None:
        reserved = self._state.reserved.get(reservation.sequence)
        if reserved is None or reservation.ledger != self.id or reserved.request != reservation.request:
            raise ReleaseRefused("this reservation was not made by this ledger; nothing was stored or released")

    def _excerpt(self, ledger: str) -> Excerpt | None:
        """What a server is shown that knows this ledger by that name; none for the ledger itself, or a stranger."""
        if self._shown is not None and ledger == self._shown.ledger:
            # Known to be ours even if all of it is gone.
            return self._state.excerpts.under(self.device_key.hex())
        return self._state.excerpts.by_ledger.get(ledger)

    def _face(self, sequence: int) -> Face:
        if sequence not in self._state.excerpts.places:
            digest = self._state.digests[sequence - self._state.first]
            return Face(self.id, sequence, digest, self._session.keys.signing)
        excerpt, number = self._state.excerpts.places[sequence]
        head = excerpt.head_at(number)
        if head is None or self._shown is None or excerpt.ledger != self._shown.ledger:
            raise ReleaseRefused("this release is for a server that is shown another excerpt; it stays on the device")
        return Face(excerpt.ledger, number, head, self._shown.signing)

    def _check_made_here(self, release: Release) -> None:
        """Raise `ReleaseRefused` unless there is an entry that says the same."""
        entry = self._state.releases.get(release.sequence)
        if entry is None or entry.payload_hash != release.payload_hash:
            raise ReleaseRefused("this release does not stand in this ledger; it stays on the device")
        if self._release(release.sequence, release.payload) != release:
            raise ReleaseRefused("this release differs from its entry in the ledger; it stays on the device")

    def _stored(self, reservation: Reservation) -> Release | None:
        sequence = self._state.released.get(reservation.sequence)
        if sequence is None:
            return None
        sealed = self._storage.answer(reservation.sequence)
        if sealed is None:
            raise ReleaseRefused(
                "this request was answered, acknowledged and forgotten; it is not noised a second time; "
                "ask about a new subject; nothing was released"
            )
        payload = open_sealed(self._session.keys.sealing, sealed, self._place(reservation))
        if hashlib.sha256(payload).hexdigest() != self._state.releases[sequence].payload_hash:
            raise tampered(f"the stored answer to entry {reservation.sequence} was exchanged")
        return self._release(sequence, payload)

    def _release(self, sequence: int, payload: bytes) -> Release:
        release, digest = self._state.releases[sequence], self._state.digests[sequence - self._state.first]
        reserved = self._state.reserved[release.reserve]
        return Release(
            sequence=sequence,
            mechanism=reserved.mechanism,
            server=reserved.server,
            purpose=reserved.purpose,
            cost=reserved.cost,
            request=reserved.request,
            head=digest.hex(),
            payload=payload,
            seeded=release.seeded,
        )

    def _place(self, reservation: Reservation) -> bytes:
        return place("answer", reservation.ledger, reservation.sequence, reservation.request)


def _marked(files: LedgerFiles, keys: LedgerKeys, parts: OpenLedger) -> Mark:
    """The mark of a believed ledger, brought up to its end."""
    if not files.mark.exists():
        upgrade(files, keys, parts)
    with unavailable("opened"):
        mark = Mark.open(files.mark, keys.marking)
        with closing_on_failure(mark):
            if mark.read() != Reached.of(parts.state):
                mark.write(Reached.of(parts.state), durably=True)
    return mark


def _needed(budget: PrivacyBudget | None) -> PrivacyBudget:
    if budget is None:
        raise LedgerUnavailable("there is no ledger in this directory; give a budget to create one; nothing was opened")
    return budget
