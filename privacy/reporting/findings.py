"""What can be wrong in a fleet, in the order in which a person should look at it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """What does not reconcile; the worst first."""

    TAMPERED = "tampered"
    ROLLED_BACK = "rolled_back"
    UNDERBOOKED = "underbooked"
    UNREADABLE = "unreadable"
    TWO_COPIES = "two_copies"
    BAD_RECEIPT = "bad_receipt"
    DIFFERS = "differs"
    NOT_IN_LEDGER = "not_in_ledger"
    UNKNOWN_LEDGER = "unknown_ledger"
    NEVER_RECEIVED = "never_received"

    @property
    def heading(self) -> str:
        return _MEANINGS[self][0]

    @property
    def meaning(self) -> str:
        """What it means and what to do, in two sentences."""
        return _MEANINGS[self][1]


_MEANINGS = {
    FindingKind.TAMPERED: (
        "Tampered ledger",
        (
            "The record of what a device released cannot be believed, so its budget counts as exhausted. "
            "Keep the files, find out who could write them, then decide: covey privacy verify STATE --start-over."
        ),
    ),
    FindingKind.ROLLED_BACK: (
        "Rolled back",
        (
            "The ledger is older than, or other than, what was seen of it before: spends may be missing from it. "
            "Treat its budget as exhausted and look for a restored backup or a copied device."
        ),
    ),
    FindingKind.UNDERBOOKED: (
        "Booked for less than it cost",
        (
            "The ledger is signed and complete, but takes less from the budget than its own releases cost. "
            "The software that wrote it is faulty or was changed: treat its budget as exhausted."
        ),
    ),
    FindingKind.UNREADABLE: (
        "Unreadable",
        (
            "There is no ledger here, or it could not be read, so nothing is known about this device. "
            "Check the path and the permissions and run the report again."
        ),
    ),
    FindingKind.TWO_COPIES: (
        "Two copies of one ledger",
        (
            "The same ledger was given twice; only the longer copy is counted. "
            "Leave one out, or find out why a device's state was copied."
        ),
    ),
    FindingKind.BAD_RECEIPT: (
        "Receipt that cannot be believed",
        (
            "A line of the receipts is not in our format, or not signed by the device it names. "
            "It was not counted; ask the server for a fresh export."
        ),
    ),
    FindingKind.DIFFERS: (
        "Receipt and ledger differ",
        (
            "The server received something other than what the ledger says was released. "
            "One of the two was changed afterwards; compare the payload hashes with what the server stored."
        ),
    ),
    FindingKind.NOT_IN_LEDGER: (
        "Received, but not in the ledger",
        (
            "The server holds a receipt for which the ledger has no release: something left without being booked here. "
            "Treat the device's budget as exhausted until it is explained."
        ),
    ),
    FindingKind.UNKNOWN_LEDGER: (
        "Receipts of a ledger that was not given",
        (
            "The server received releases from a device whose ledger is not part of this report, or could not be read. "
            "Add its ledger, or account for the device otherwise."
        ),
    ),
    FindingKind.NEVER_RECEIVED: (
        "Released, never received",
        (
            "The ledger holds a release of which the server has no receipt. It may be under way or lost on the way; "
            "if it is old, the receipts are incomplete. It counts as spent either way."
        ),
    ),
}


@dataclass(frozen=True)
class Finding:
    """One thing that does not reconcile."""

    kind: FindingKind
    place: str
    """The ledger, or the line of the receipts, where it was found."""
    sentence: str
    count: int = 1


@dataclass(frozen=True)
class Notice:
    """Something a reader should know that is not wrong."""

    place: str
    sentence: str


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """The worst first; within a kind, by place."""
    kinds = list(FindingKind)
    return tuple(sorted(findings, key=lambda finding: (kinds.index(finding.kind), finding.place)))
