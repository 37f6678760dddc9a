"""Who may touch a ledger's files, and when: threads, processes, transactions, and bad news that sticks.

A transaction works on the newest state (it first follows what other processes wrote), is durable when it
ends, and is then noted in the anchor and in the mark, all under one lock. What it drafted enters the state only once
it is on disk. After `LedgerTampered` a session answers nothing else any more.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.errors import LedgerTampered, LedgerUnavailable
from privacy.ledger.anchor import Note
from privacy.ledger.checks import Verification, check_everything
from privacy.ledger.entries import Entry, Event, Head, Released, link
from privacy.ledger.files import signed_end, unavailable
from privacy.ledger.mark import Mark, Reached
from privacy.ledger.storage import Row
from privacy.receipts import Countersignature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from privacy.keys import LedgerKeys
    from privacy.ledger.checks import OpenLedger
    from privacy.ledger.files import LedgerFiles
    from privacy.ledger.state import LedgerState
    from privacy.ledger.storage import LedgerStorage


@dataclass(frozen=True)
class Acknowledged:
    """What a server has seen, and the reservation whose answer it has, if it is about one."""

    countersignature: Countersignature
    reserve: int | None


class LedgerSession:
    """The open files of one ledger. Without keys it can only be read."""

    def __init__(
        self,
        files: LedgerFiles,
        parts: OpenLedger,
        keys: LedgerKeys | None,
        clock: Callable[[], float],
        *,
        mark: Mark | None = None,
    ) -> None:
        self.storage, self.state = parts.storage, parts.state
        self._files, self._anchor = files, parts.anchor
        self._keys, self._clock = keys, clock
        self._mark, self._marked = mark, parts.state.sequence
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._verdict: str | None = None
        self._closed = False
        self._version: int | None = None
        self._reader = threading.local()
        self.answered: set[int] = set()
        """The reservations whose answers are still kept."""
        self.seen: dict[tuple[str, str], int] = {}
        """By server and the ledger's name there: how far it has been seen, as far as this session was told and nobody
        else has written since.
        """
        self.acknowledged: list[Acknowledged] = []
        """What is to be written with the next transaction that is not for a booking."""
        self.last: Head | None = None
        """The last entry that this session wrote and signed."""
        self.signed: Head | None = None
        """The last release of this session, as its server was shown it."""

    @property
    def keys(self) -> LedgerKeys:
        if self._keys is None:
            raise LedgerUnavailable("this ledger was opened to be read, without keys; nothing was booked or released")
        return self._keys

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """One thread at a time, in the process that opened the ledger, and never again after bad news."""
        if os.getpid() != self._process:
            raise LedgerUnavailable(
                "this ledger was opened before the process forked; open it again in the child; nothing was booked"
            )
        with self._mutex:
            if self._verdict is not None:
                raise LedgerTampered(self._verdict)
            if self._closed:
                raise LedgerUnavailable("this ledger was closed; open it again; nothing was booked or released")
            try:
                yield
            except LedgerTampered as error:
                self._verdict = str(error)
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent, newest view."""
        with self.guarded(), self.storage.reading():
            self._catch_up()
            yield

    @contextmanager
    def knowing(self) -> Iterator[None]:
        """The newest state, for questions that it answers from memory."""
        with self.guarded():
            if not self._is_undisturbed() and self.storage.version() != self._version:
                with self.storage.reading():
                    self._catch_up()
            yield

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, this thread is told what this session knows; transactions follow others all the same."""
        before, self._reader.is_undisturbed = self._is_undisturbed(), True
        try:
            yield
        finally:
            self._reader.is_undisturbed = before

    @contextmanager
    def writing(self, *, booking: bool = False) -> Iterator[Draft]:
        """One transaction, guarded."""
        with self.guarded(), self.transaction(booking=booking) as draft:
            yield draft

    @contextmanager
    def transaction(self, *, booking: bool = False) -> Iterator[Draft]:
        """A transaction on the newest state; its entry counts once it is on disk, and is then anchored.

        What was acknowledged goes with it, unless it is for `booking`: the answer that follows takes the place of the
        one that is then forgotten, and a place that was freed before would have been overwritten twice.
        """
        draft = Draft(self.storage, self.state, self.keys, self._clock)
        with self._files.locked():
            with self.storage.writing():
                self._catch_up()
                if self._marked != self.state.sequence:
                    self.write_mark()  # another process may have died before it did
                acknowledged = [] if booking else list(self.acknowledged)
                seen = self._write_acknowledged(draft, acknowledged)
                yield draft
            self.acknowledged = [each for each in self.acknowledged if each not in acknowledged]
            self.seen.update(seen)
            self.answered = (self.answered | draft.kept) - draft.dropped
            if draft.written is not None:
                entry, self.last = draft.written
                self.state.accept(entry, self.last.digest)
                self._note(self.last)
                # What was released may be sent now. From here on not even a power cut may forget it.
                self.write_mark(durably=isinstance(entry.event, Released))

    @contextmanager
    def acknowledging(self, what: Acknowledged) -> Iterator[None]:
        """Add to what the next transaction writes; not if the block fails."""
        self.acknowledged.append(what)
        try:
            yield
        except BaseException:
            self.acknowledged.remove(what)
            raise

    def write_acknowledged(self) -> None:
        """A transaction of its own for what would go with the next; guarded, like every other."""
        if self.acknowledged:
            with self.transaction():
                pass

    def is_acknowledged(self, reserve: int) -> bool:
        """Whether the answer to a reservation is kept only until what was acknowledged is written."""
        return any(each.reserve == reserve for each in self.acknowledged)

    def mend_anchor(self) -> None:
        """Write the page of the anchor that was lost in a torn write."""
        with self.guarded(), self._files.locked():
            self._note(signed_end(self.keys, self.state.opened.ledger, self.state.sequence, self.state.digest))

    def write_mark(self, *, durably: bool = True) -> None:
        """Mark how far the ledger has come; the caller holds the lock. If that fails, nothing more is written."""
        if self._mark is None:
            raise LedgerUnavailable("this ledger was opened to be read; nothing was booked or released")
        try:
            self._mark.write(Reached.of(self.state), durably=durably)
        except OSError as error:
            self.storage.give_up(f"its mark could not be written: {error.strerror}")
            with unavailable("marked"):
                raise
        self._marked = self.state.sequence

    def verify(self) -> Verification:
        with self.guarded():
            device_key = bytes.fromhex(self.state.opened.device_key)
            marking = None if self._keys is None else self._keys.marking
            return check_everything(self._files, self.storage, self._anchor, device_key, marking)

    def close(self) -> None:
        """Make the anchor durable and let go of the files; closing twice is harmless."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            try:
                if self._keys is not None:
                    # It is sent again if this fails, which is no reason for the rest not to be closed.
                    with suppress(LedgerUnavailable, LedgerTampered):
                        self._finish_writing()
                    with unavailable("synced"):
                        self._anchor.sync()
                        if self._mark is not None:
                            self._mark.sync()
            finally:
                self.storage.close()
                self._anchor.close()
                if self._mark is not None:
                    self._mark.close()
                self._files.close()

    def _is_undisturbed(self) -> bool:
        """Whether others need not be asked for; until the files were looked at once, they must be."""
        return self._version is not None and getattr(self._reader, "is_undisturbed", False)

    def _catch_up(self) -> None:
        """Follow what other processes have written since."""
        version = self.storage.version()
        if version == self._version:
            return  # nobody else has written, and what this session commits it knows
        head = self.storage.head()
        if head is None or (head.sequence, head.digest) != (self.state.sequence, self.state.digest):
            for row in self.storage.rows_after(self.state.sequence):
                self.state.follow(row)
            self.state.check_head(head)
        self.answered, self.seen = set(self.storage.answered()), {}
        self._version = version

    def _finish_writing(self) -> None:
        if self._verdict is None and os.getpid() == self._process:
            self.write_acknowledged()

    def _write_acknowledged(self, draft: Draft, acknowledged: list[Acknowledged]) -> dict[tuple[str, str], int]:
        """How far servers will have seen the ledger once this transaction is on disk."""
        seen: dict[tuple[str, str], int] = {}
        for each in acknowledged:
            given = each.countersignature
            held = max(self._seen_by(given), seen.get((given.server, given.ledger), -1))
            if held < given.sequence:
                self.storage.keep_countersignature(given.server, given.to_json())
            seen[given.server, given.ledger] = max(held, given.sequence)
            if each.reserve is not None:
                draft.drop_answer(each.reserve)
        return seen

    def _seen_by(self, given: Countersignature) -> int:
        """How far the server that gave this has seen the ledger, as it is kept; -1 if it has not, under that name."""
        if (given.server, given.ledger) not in self.seen:
            held = self.storage.countersignatures().get(given.server)
            kept = None if held is None else Countersignature.from_json(held)
            # A server that is shown an excerpt counts from 1, whatever it was shown before.
            return -1 if kept is None or kept.ledger != given.ledger else kept.sequence
        return self.seen[given.server, given.ledger]

    def _note(self, head: Head) -> None:
        with unavailable("anchored"):
            self._anchor.advance(Note(head, self.state.spent))


class Draft:
    """What a transaction changes: at most one entry, and answers that are kept or dropped."""

    def __init__(
        self, storage: LedgerStorage, state: LedgerState, keys: LedgerKeys, clock: Callable[[], float]
    ) -> None:
        self._storage, self._state, self._keys, self._clock = storage, state, keys, clock
        self.written: tuple[Entry, Head] | None = None
        self.kept: set[int] = set()
        self.dropped: set[int] = set()

    def append(self, event: Event) -> int:
        """Write `event` as the next entry and return its number."""
        # A clock that was set back must not make entries look re-ordered; no budget depends on it.
        at = max(int(self._clock()), self._state.at)
        entry = Entry(self._state.sequence + 1, at, event)
        body = entry.body()
        digest = link(self._state.digest, body)
        head = signed_end(self._keys, self._state.opened.ledger, entry.sequence, digest)
        self._storage.append(Row(entry.sequence, body, digest), head.signature)
        self.written = entry, head
        return entry.sequence

    def keep_answer(self, reserve: int, sealed: bytes) -> None:
        self._storage.keep_answer(reserve, sealed)
        self.kept.add(reserve)

    def drop_answer(self, reserve: int) -> None:
        self._storage.drop_answer(reserve)
        self.dropped.add(reserve)
