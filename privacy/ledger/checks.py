"""Whether a ledger on disk can be believed: chain, signatures, anchor, countersignatures, stored answers.

Everything here raises `LedgerTampered` or is satisfied. `open_checked` is what every opening goes through;
`check_everything` adds what takes longer: every page of the file and every stored answer.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.errors import LedgerTampered, ReceiptRefused
from privacy.ledger.anchor import Anchor
from privacy.ledger.files import unavailable
from privacy.ledger.state import LedgerState, check_signed
from privacy.ledger.storage import LedgerStorage, tampered
from privacy.receipts import Countersignature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privacy.ledger.anchor import Note
    from privacy.ledger.files import LedgerFiles


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


def open_checked(files: LedgerFiles, device_key: bytes | None, *, read_only: bool = False) -> OpenLedger | None:
    """The ledger, believed; none where none was ever finished. The caller holds the lock."""
    if not _exists(files, device_key):
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
                return None
            state = replay(storage, device_key)
        torn = check_anchor(state, anchor.read())
        on_failure.pop_all()
    return OpenLedger(storage, anchor, state, torn)


def replay(storage: LedgerStorage, device_key: bytes | None) -> LedgerState:
    """What the stored entries add up to, if all of them and what hangs on them can be believed."""
    storage.check_schema()
    rows = storage.rows_after(-1)
    first = next(rows, None)
    if first is None:
        raise tampered("its entries are gone")
    state = LedgerState.begin(first)
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


def check_everything(
    files: LedgerFiles, storage: LedgerStorage, anchor: Anchor, device_key: bytes | None
) -> Verification:
    """Read the whole ledger anew, every page and every stored answer."""
    with storage.reading():
        with files.locked():
            # The first read fixes what this transaction sees; the anchor belongs to the same moment.
            storage.head()
            notes = anchor.read()
        storage.check_pages()
        state = replay(storage, device_key)
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


def check_reached(state: LedgerState, countersignature: Countersignature) -> None:
    """Raise `LedgerTampered` if a server has seen an entry of this ledger that is not in it (any more)."""
    # Numbers before the opening entry belong to a predecessor; a person has decided about that one.
    if countersignature.sequence < state.first:
        return
    if state.digest_at(countersignature.sequence) != countersignature.head:
        raise tampered(
            f"it was rolled back: server {countersignature.server!r} has seen entry {countersignature.sequence}, "
            "which is not in it"
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
            check_signed(device_key.hex(), note.head.statement, note.head.signature, "its anchor")


def _is_signed(state: LedgerState, note: Note) -> bool:
    if note.head.ledger != state.opened.ledger:
        return False
    try:
        check_signed(state.opened.device_key, note.head.statement, note.head.signature, "its anchor")
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
        if kept.server != server or kept.ledger != state.opened.ledger:
            raise tampered("a kept countersignature belongs elsewhere")
        check_signed(state.opened.device_key, kept.entry.statement, kept.head_signature, "a countersigned entry")
        check_reached(state, kept)


def _check_answer(state: LedgerState, storage: LedgerStorage, reserve: int) -> None:
    sealed, release = storage.answer(reserve), state.releases[state.released[reserve]]
    if sealed is None or hashlib.sha256(sealed).hexdigest() != release.sealed_hash:
        raise tampered(f"the stored answer to entry {reserve} was changed")
