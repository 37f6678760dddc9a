"""The device's one ledger as the vault knows it: its keys, and that there is a mark without which it is not believed.

    make the keys  ->  a blank mark under them, on disk  ->  keys and the word that there is a mark, in one transaction
      ->  the ledger, and its mark filled in

Whoever deletes the ledger, and its mark with it, leaves a vault that knows better. A kill in between leaves a blank
mark under keys that nobody has, which is made anew, or a blank mark and no ledger, which is then created; nothing
can have been booked. The vault's word is never taken back, so an older state of the vault, put back from its own log,
says the same.

A vault from before there were marks says nothing. The ledger that is there is taken as it is, once. A vault that has
the keys and no ledger has lost it, unless the keys are all that was ever written: then creation was interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.events import emit
from device_sdk.vault.contents import OF_THE_DEVICE
from device_sdk.vault.files import unavailable
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.ledger.files import LEDGER_FILES, MARK_FILE
from privacy.ledger.mark import Mark
from privacy.ledger.storage import tampered

if TYPE_CHECKING:
    from device_sdk.vault import Vault
    from privacy.budget import PrivacyBudget

_TABLE, _KEYS, _MARKED = "keys", "ledger", "ledger marked"
_YES = b"yes"
_WITH_KEYS_ONLY = 2
"""The generation of a vault that was created and given the ledger's keys, and nothing else."""


def ledger_keys(vault: Vault) -> LedgerKeys:
    """The keys of the device's ledger, made once. They belong to no server, so no shredding takes them away."""
    table = vault.table(OF_THE_DEVICE, _TABLE)
    with vault.changing():
        kept = table.get(_KEYS)
        if kept is not None:
            return LedgerKeys.from_bytes(kept)
        keys = LedgerKeys.generate()
        if not _has_ledger(
            vault
        ):  # one that is there was written under other keys, and its own mark says how far it came
            with unavailable("marked"):
                Mark.create(vault.directory / MARK_FILE, keys.marking)
        table.put(_KEYS, keys.to_bytes())
        table.put(_MARKED, _YES)
    emit("ledger_keys_created")
    return keys


def open_ledger(vault: Vault, budget: PrivacyBudget | None = None) -> Ledger:
    """The ledger beside `vault`; a new one where there never was one.

    `LedgerTampered` if the vault knows of one that is not there any more, or not as it was.
    """
    keys = ledger_keys(vault)
    marked = vault.table(OF_THE_DEVICE, _TABLE)
    is_known = marked.get(_MARKED) is not None
    if not is_known and not _has_ledger(vault) and vault.generation > _WITH_KEYS_ONLY:
        raise tampered("it is gone, and the vault still holds its keys")
    ledger = Ledger.open(vault.directory, keys, budget, is_known=is_known)
    if not is_known:
        try:
            marked.put(_MARKED, _YES)
            vault.forget_past()  # its log would still say that there is no mark
        except BaseException:
            ledger.close()
            raise
    return ledger


def _has_ledger(vault: Vault) -> bool:
    return any((vault.directory / name).exists() for name in LEDGER_FILES)
