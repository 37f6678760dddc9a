"""The privacy ledger, one idea a file; `book` is the ledger, `recovery` what a person decides about a broken one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privacy.ledger.book import Booking, Ledger, Reservation
    from privacy.ledger.recovery import start_over
    from privacy.ledger.status import LedgerStatus

# Loaded when first used: receipts need `entries`, and `book` needs receipts.
_HOMES = {
    "Booking": "privacy.ledger.book",
    "Ledger": "privacy.ledger.book",
    "LedgerStatus": "privacy.ledger.status",
    "Reservation": "privacy.ledger.book",
    "start_over": "privacy.ledger.recovery",
}

__all__ = ["Booking", "Ledger", "LedgerStatus", "Reservation", "start_over"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'privacy.ledger' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
