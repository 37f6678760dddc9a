"""Whether a ledger on disk can be believed: chain, signatures, anchor, mark, countersignatures, stored answers.

Everything here raises `LedgerTampered` or is satisfied. `open_checked` is what every opening goes through;
`check_everything` adds what takes longer: every page of the file and every stored answer. The mark can be read only
with the device's keys; whoever reads a ledger without them does not learn whether it was cut.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.errors import LedgerTampered, ReceiptRefused
from privacy.ledger.anchor import Anchor
from privacy.ledger.entries import FIRST_VERSION
from privacy.ledger.files import unavailable
from privacy.ledger.mark import BLANK, read_mark
from privacy.ledger.state import LedgerState, check_end, check_signed
from privacy.ledger.storage import LedgerStorage, tampered
from privacy.receipts import Countersignature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privacy.ledger.anchor import Note
    from privacy.ledger.excerpts import Excerpt
    from privacy.ledger.files import LedgerFiles
    from privacy.ledger.mark import Reached


@dataclass(frozen=True)
class OpenLedger:
    """The open files of a ledger and what they add up to."""

    storage: LedgerStorage
    anchor: Anchor
    state: LedgerState
    torn: bool
    """Whether a page of the anchor was lost in a torn write; the next writer restores it."""

    def close(self) -> None:
        self.storage.close()
        self.anchor.close()


@dataclass(frozen=True)
class Verification:
    """What was read and found intact."""

    ledger: str
    sequence: int
    digest: str
    num_entries: int
    num_answers: int
    num_countersignatures: int
    torn_anchor: bool


def open_checked(
    files: LedgerFiles, device_key: bytes | None, *, read_only: bool = False, marking: bytes | None = None
) -> OpenLedger | None:
    """The ledger, believed; none where none was ever finished. The caller holds the lock.

    `marking` is the key of its mark. A ledger from before there were marks may have none: who opens it gives it one.
    """
    if not _exists(files, device_key):
        _check_not_lost(files, marking)
        return None
    with ExitStack() as on_failure:
        storage = files.storage(read_only=read_only)
        on_failure.callback(storage.close)
        with unavailable("opened"):
            anchor = Anchor.open(files.anchor, read_only=read_only)
        on_failure.callback(anchor.close)
        with storage.reading():
            if storage.is_blank():
                _check_never_used(anchor.read(), device_key)
                _check_not_lost(files, marking)
                return None
            state = replay(storage, device_key, is_marked=files.mark.exists())
        torn = check_anchor(state, anchor.read())
        if marking is not None:
            check_marked(state, files, marking)
        on_failure.pop_all()
    return OpenLedger(storage, anchor, state, torn)


def replay(storage: LedgerStorage, device_key: bytes | None, *, is_marked: bool) -> LedgerState:
    """What the stored entries add up to, if all of them and what hangs on them can be believed."""
    storage.check_schema()
    rows = storage.rows_after(-1)
    first = next(rows, None)
    if first is None:
        raise tampered("its entries are gone")
    state = LedgerState.begin(first, is_marked=is_marked)
    if device_key is not None and state.opened.device_key != device_key.hex():
        raise tampered("it was written under other keys than these")
    for row in rows:
        state.follow(row)
    state.check_head(storage.head())
    if not set(storage.answered()) <= set(state.released):
        raise tampered("it holds an answer that no entry names")
    _check_countersignatures(state, storage)
    return state


def check_anchor(state: LedgerState, notes: Sequence[Note | None]) -> bool:
    """Whether a page was torn; raise `LedgerTampered` if the anchor has seen what the entries do not say."""
    sound = [note for note in notes if note is not None and _is_signed(state, note)]
    if not sound:
        raise tampered("its anchor is damaged")
    for note in sorted(sound, key=lambda note: note.head.sequence, reverse=True):
        head = note.head
        if head.sequence > state.sequence:
            raise tampered(
                f"it was rolled back: it ends at entry {state.sequence}, but had come to entry {head.sequence}"
            )
        if head.digest != state.digest_at(head.sequence) or note.spent != state.total_at(head.sequence):
            raise tampered(f"entry {head.sequence} is not the one that its anchor has seen")
    # A page is torn while a commit is noted, so the entries then reach beyond the other page. If they do
    # not, the commit that was being noted is gone, and tearing the page was meant to hide it.
    torn = len(sound) < len(notes)
    if torn and max(note.head.sequence for note in sound) == state.sequence:
        raise tampered("its anchor is damaged")
    return torn


def check_marked(state: LedgerState, files: LedgerFiles, marking: bytes) -> None:
    """Raise `LedgerTampered` unless the mark is there and this ledger is the one it has seen."""
    if files.mark.exists():
        with unavailable("opened"):
            reached = read_mark(files.mark, marking)
        check_mark(state, reached)
    elif state.opened.version > FIRST_VERSION:
        raise tampered("its mark is missing")


def check_mark(state: LedgerState, reached: Reached | None) -> None:
    """Raise `LedgerTampered` if the mark has seen what the entries do not say, or not what it must have seen."""
    if reached is BLANK:
        if state.sequence:  # it is filled in before anything can be booked
            raise tampered("its mark was set back")
        return
    if (reached.ledger, reached.opening) != (state.opened.ledger, state.digests[0].hex()):
        raise tampered("another ledger stands in its place")
    if reached.sequence > state.sequence:
        raise tampered(f"it was cut: it ends at entry {state.sequence}, but had come to entry {reached.sequence}")
    if (reached.digest, reached.spent) != (state.digest_at(reached.sequence), state.total_at(reached.sequence)):
        raise tampered(f"entry {reached.sequence} is not the one that its mark has seen")
    # The mark is on disk before the next entry follows a release, so one that lags behind more was put back.
    if any(sequence in state.releases for sequence in range(reached.sequence + 1, state.sequence)):
        raise tampered("its mark was set back")


def check_everything(
    files: LedgerFiles, storage: LedgerStorage, anchor: Anchor, device_key: bytes | None, marking: bytes | None
) -> Verification:
    """Read the whole ledger anew, every page and every stored answer."""
    with storage.reading():
        with files.locked():
            # The first read fixes what this transaction sees; the anchor belongs to the same moment.
            storage.head()
            notes = anchor.read()
            is_marked = files.mark.exists()
            reached = read_mark(files.mark, marking) if marking is not None else BLANK
        storage.check_pages()
        state = replay(storage, device_key, is_marked=is_marked)
        if marking is not None:
            check_mark(state, reached)
        answers = storage.answered()
        for reserve in answers:
            _check_answer(state, storage, reserve)
        num_countersignatures = len(storage.countersignatures())
    return Verification(
        ledger=state.opened.ledger,
        sequence=state.sequence,
        digest=state.digest.hex(),
        num_entries=len(state.digests),
        num_answers=len(answers),
        num_countersignatures=num_countersignatures,
        torn_anchor=check_anchor(state, notes),
    )


def check_reached(state: LedgerState, excerpt: Excerpt | None, countersignature: Countersignature) -> None:
    """Raise `LedgerTampered` if a server has seen an entry of this ledger that is not in it (any more).

    `excerpt` is what that server is shown; none if it is shown the ledger itself.
    """
    # Numbers before the opening entry belong to a predecessor; a person has decided about that one.
    number = countersignature.sequence
    if number < state.first if excerpt is None else number <= excerpt.before:
        return
    head = state.digest_at(number) if excerpt is None else excerpt.head_at(number)
    if head != countersignature.head:
        raise tampered(
            f"it was rolled back: server {countersignature.server!r} has seen "
            f"{'entry' if excerpt is None else 'release'} {number}, which is not in it"
        )


def _exists(files: LedgerFiles, device_key: bytes | None) -> bool:
    if files.restart.exists():
        raise tampered("starting over was interrupted")
    if not files.anchor.exists():
        if files.database.exists() or files.log.exists():
            raise tampered("its anchor is missing")
        return False
    if files.database.exists():
        return True
    if files.log.exists():
        raise tampered("its entries are gone")
    with unavailable("opened"), closing(Anchor.open(files.anchor, read_only=True)) as anchor:
        _check_never_used(anchor.read(), device_key)
    return False


def _check_never_used(notes: Sequence[Note | None], device_key: bytes | None) -> None:
    """No entries: right only if creation was interrupted, and then nothing can have been spent."""
    for note in notes:
        if note is None or note.head.sequence > 0:
            raise tampered("its entries are gone")
        if device_key is not None:
            check_end(device_key.hex(), note.head, "its anchor", takes_old=True)


def _check_not_lost(files: LedgerFiles, marking: bytes | None) -> None:
    """Raise `LedgerTampered` if the mark knows of entries where there are none."""
    if marking is not None and files.mark.exists():
        with unavailable("opened"):
            reached = read_mark(files.mark, marking)
        if reached is not BLANK:
            raise tampered("its entries are gone")


def _is_signed(state: LedgerState, note: Note) -> bool:
    if note.head.ledger != state.opened.ledger:
        return False
    try:
        check_end(state.opened.device_key, note.head, "its anchor", takes_old=state.takes_old_ends)
    except LedgerTampered:
        return False
    return True


def _check_countersignatures(state: LedgerState, storage: LedgerStorage) -> None:
    for server, body in storage.countersignatures().items():
        try:
            kept = Countersignature.from_json(body)
            kept.check_server()
        except (ValueError, ReceiptRefused) as error:
            raise tampered("a kept countersignature was changed") from error
        excerpt = state.excerpts.by_ledger.get(kept.ledger)
        if kept.server != server or (excerpt is None and kept.ledger != state.opened.ledger):
            raise tampered("a kept countersignature is about what is not in it")
        device_key = state.opened.device_key if excerpt is None else excerpt.device_key
        check_signed(device_key, kept.entry.statement, kept.head_signature, "a countersigned entry")
        check_reached(state, excerpt, kept)


def _check_answer(state: LedgerState, storage: LedgerStorage, reserve: int) -> None:
    sealed, release = storage.answer(reserve), state.releases[state.released[reserve]]
    if sealed is None or hashlib.sha256(sealed).hexdigest() != release.sealed_hash:
        raise tampered(f"the stored answer to entry {reserve} was changed")
