"""What a device keeps of one server, and its one ledger, opened together."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.affinity_store import AffinityStore
from device_sdk.identity import Identity
from device_sdk.state import RoundJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from device_sdk.round_record import Phase
    from device_sdk.vault import Vault
    from privacy.ledger import Ledger


@dataclass(frozen=True)
class Kept:
    """Handed from part to part of the runtime."""

    vault: Vault
    ledger: Ledger
    identity: Identity
    journal: RoundJournal
    affinities: AffinityStore

    @classmethod
    def of(cls, vault: Vault, ledger: Ledger, server: str) -> Kept:
        """What `vault` keeps for `server`, as the app names it."""
        journal = RoundJournal(vault, ledger, server)
        return cls(vault, ledger, Identity.of(vault, server), journal, AffinityStore(vault, server))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look once for what other processes have written, for all that this thread reads inside.

        One process at a time drives a device's rounds, so nobody else changes those; whatever is written inside is
        decided on what the disk then holds.
        """
        with self.vault.looking(), self.ledger.looking():
            yield

    def phase_of(self, task: str) -> Phase | None:
        """How far a round has come; none if it is not in progress."""
        entry = self.journal.find(task)
        return None if entry is None else entry.phase
