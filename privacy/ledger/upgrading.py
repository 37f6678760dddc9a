"""A ledger from before there were marks gets one, once, when it is first opened.

    sign the end anew, as an end  ->  sign the anchor's notes anew  ->  write the mark

Its end was signed as receipts are, so whoever holds an old receipt holds what looks like an end. It is believed a last
time, for what it says now. As soon as the mark is there no such end is taken any more; a kill before leaves a ledger
that is upgraded by the next opening.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.ledger.anchor import Note
from privacy.ledger.files import signed_end, unavailable
from privacy.ledger.mark import Mark, Reached

if TYPE_CHECKING:
    from privacy.keys import LedgerKeys
    from privacy.ledger.checks import OpenLedger
    from privacy.ledger.files import LedgerFiles


def upgrade(files: LedgerFiles, keys: LedgerKeys, parts: OpenLedger) -> None:
    """Give a believed ledger its mark. The caller holds the lock."""
    state = parts.state
    end = signed_end(keys, state.opened.ledger, state.sequence, state.digest)
    with parts.storage.writing():
        parts.storage.sign_end(end.signature)
    with unavailable("upgraded"):
        parts.anchor.sign_anew(Note(end, state.spent))
        Mark.create(files.mark, keys.marking, Reached.of(state))
    state.takes_old_ends = False
