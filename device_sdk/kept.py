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
        identity = Identity.of(vault, server)
        shown = ledger.shown_at(server if identity.is_excerpt else None)
        return cls(vault, shown, identity, RoundJournal(vault, shown, server), AffinityStore(vault, server))

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, this thread reads what this process knows, without asking whether another has written.

        One process at a time drives a device (`run_lock`), so nobody else changes its rounds, its affinities or what
        was booked for them. What is written inside is decided on what the disk then holds, spends of other processes
        included.
        """
        with self.vault.undisturbed(), self.ledger.undisturbed():
            yield

    def phase_of(self, task: str) -> Phase | None:
        """How far a round has come; none if it is not in progress."""
        entry = self.journal.find(task)
        return None if entry is None else entry.phase
