"""The privacy ledger, one idea a file; `book` is the ledger, `recovery` what a person decides about a broken one."""

from privacy.ledger.book import Ledger, Reservation
from privacy.ledger.recovery import start_over
from privacy.ledger.status import LedgerStatus

__all__ = ["Ledger", "LedgerStatus", "Reservation", "start_over"]
