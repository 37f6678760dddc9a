"""Any number of ledgers, and what a server received from them, read into one frozen picture.

A ledger that cannot be believed or read is a finding and takes no part in any figure: what is shown of the fleet is
shown of the ledgers that stand.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.errors import LedgerError, LedgerTampered
from privacy.ledger.storage import DECIDE
from privacy.reporting.amounts import counted, printable
from privacy.reporting.findings import Finding, FindingKind, Notice, in_order
from privacy.reporting.ledger_view import LedgerView, read_ledger
from privacy.reporting.receipts_file import read_receipts
from privacy.reporting.reconciliation import Reconciliation, reconcile

if TYPE_CHECKING:
    from pathlib import Path

    from privacy.reporting.terminal import Advance

Progress = Callable[[str], AbstractContextManager["Advance"]]


@dataclass(frozen=True)
class Fleet:
    """The ledgers that stand, what does not reconcile, and what a reader should know."""

    given: int
    views: tuple[LedgerView, ...]
    findings: tuple[Finding, ...]
    notices: tuple[Notice, ...]
    receipts_name: str | None
    num_receipts: int
    matched: int
    unchecked: dict[str, int]
    made_at: int

    @property
    def verdict(self) -> str:
        """One sentence: whether everything reconciles, or how much does not."""
        if self.findings:
            kinds = Counter(finding.kind.heading.lower() for finding in self.findings)
            found = ", ".join(f"{heading} ({count:,})" for heading, count in kinds.items())
            return (
                f"{counted(len(self.findings), 'thing does', 'things do')} not reconcile: {found}; nothing was changed"
            )
        ledgers = "the ledger is intact" if self.given == 1 else f"all {self.given:,} ledgers are intact"
        if self.receipts_name is None:
            return f"{ledgers}; no receipts were given, so it is not known what servers received"
        return f"{ledgers}, and {counted(self.matched, 'receipt matches', 'receipts match')}"


def read_fleet(
    directories: Sequence[Path], receipts: Path | None, progress: Progress, clock: Callable[[], float] = time.time
) -> Fleet:
    """Read and check everything; what is wrong becomes a finding, never an exception."""
    with progress("reading ledgers") as advance:
        views, findings = _read_ledgers(directories, advance)
    views, copies = _without_copies(views)
    findings += copies
    matched = Reconciliation(0, (), (), {})
    num_receipts = 0
    if receipts is not None:
        with progress("reading receipts") as advance:
            received = read_receipts(receipts, advance)
        matched, num_receipts = reconcile(views, received), len(received.receipts)
        findings += [*received.findings, *matched.findings]
    return Fleet(
        given=len(directories),
        views=tuple(views),
        findings=in_order(findings),
        notices=(*_notices(views), *matched.notices),
        receipts_name=None if receipts is None else receipts.name,
        num_receipts=num_receipts,
        matched=matched.matched,
        unchecked=matched.unchecked,
        made_at=int(clock()),
    )


def _read_ledgers(directories: Sequence[Path], advance: Advance) -> tuple[list[LedgerView], list[Finding]]:
    views, findings = [], []
    for done, directory in enumerate(directories, start=1):
        try:
            view = read_ledger(directory, in_full=True)
        except LedgerError as error:
            findings.append(Finding(_kind_of(error), str(directory), _in_short(error)))
        else:
            if view.booking_faults:
                findings.append(Finding(FindingKind.UNDERBOOKED, str(directory), "; ".join(view.booking_faults)))
            else:
                views.append(view)
        advance(done, len(directories))
    return views, findings


def _kind_of(error: LedgerError) -> FindingKind:
    if not isinstance(error, LedgerTampered):
        return FindingKind.UNREADABLE
    return FindingKind.ROLLED_BACK if "rolled back" in str(error) else FindingKind.TAMPERED


def _in_short(error: LedgerError) -> str:
    """What is wrong, without what to do about it: a report says that once for all."""
    return str(error).removesuffix(f"; {DECIDE}").removeprefix("the ledger cannot be believed: ")


def _without_copies(views: Sequence[LedgerView]) -> tuple[list[LedgerView], list[Finding]]:
    """Each ledger once, the longest copy of it: counting a device twice would hide it among others."""
    kept: dict[str, LedgerView] = {}
    findings = []
    for view in sorted(views, key=lambda view: -view.status.sequence):
        longest = kept.setdefault(view.id, view)
        if longest is not view:
            same = longest.digest_at(view.status.sequence) == view.digests[-1]
            how = "an older state of" if same else "a branch of"
            how = "the same as" if longest.digests == view.digests else how
            kind = FindingKind.TWO_COPIES if same else FindingKind.ROLLED_BACK
            findings.append(
                Finding(kind, view.place, f"this is {how} the ledger in {longest.place}; it is not counted")
            )
    return [view for view in views if kept[view.id] is view], findings


def _notices(views: Sequence[LedgerView]) -> list[Notice]:
    notices = []
    for view in views:
        if view.started_over:
            reasons = "; ".join(printable(decision.reason) for decision in view.decisions) or "no reason is recorded"
            notices.append(Notice(view.place, f"started over at entry {view.first}: {reasons}"))
        if view.unsettled:
            spends = counted(len(view.unsettled), "spend was", "spends were")
            notices.append(Notice(view.place, f"{spends} booked and never became a release; it counts all the same"))
        if any(booking.seeded for booking in view.bookings):
            notices.append(Notice(view.place, "holds releases noised from a seed; such releases never leave a device"))
    return notices
