"""Everything that `privacy` refuses, as one tree; each message says what, why, and what became of the data.

PrivacyError
├── InvalidTerms            the terms make no sense (ε ≤ 0, an unknown relation, a shape that differs)
├── BudgetExhausted         the release would exceed the budget or a server's quota
├── LedgerError
│   ├── LedgerTampered      altered, truncated, rolled back or lost; counts as exhausted
│   └── LedgerUnavailable   the disk or the lock said no; nothing was booked
├── ReleaseRefused          this may not leave the device (seeded noise, foreign reservation)
├── ReceiptRefused          replayed, re-ordered, foreign or forged
├── SealBroken              a sealed answer does not open under this key and place
├── UnsupportedModel        per-sample clipping cannot treat this model
└── MissingExtra            an optional package is needed; the message names the install command
"""

from __future__ import annotations


class PrivacyError(Exception):
    """Base of all errors raised by `privacy`."""


class InvalidTerms(PrivacyError, ValueError):
    """The terms of a mechanism, budget or plan make no sense; nothing was booked or released."""


class BudgetExhausted(PrivacyError):
    """The release would cost more than is left; nothing was booked or released."""


class LedgerError(PrivacyError):
    """The ledger cannot be relied on."""


class LedgerTampered(LedgerError):
    """The ledger was altered, truncated, rolled back or lost, so its budget counts as exhausted."""


class LedgerUnavailable(LedgerError):
    """The ledger could not be read or written durably; nothing was booked."""


class ReleaseRefused(PrivacyError):
    """This may not leave the device."""


class ReceiptRefused(PrivacyError):
    """A receipt or countersignature that is replayed, re-ordered, foreign or forged; `reason` says which."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class SealBroken(PrivacyError):
    """Sealed bytes that were altered, moved, or sealed under another key. One error for every cause."""


class UnsupportedModel(PrivacyError):
    """Per-sample clipping cannot treat this model; the message names the layer and the fix."""


class MissingExtra(PrivacyError, ImportError):
    """An optional package is missing; the message names the command that installs it."""
