"""After an old copy of a vault was put back: go on with what cannot be out of date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.errors import VaultBroken
from device_sdk.events import emit
from device_sdk.vault.contents import OF_THE_DEVICE
from device_sdk.vault.draft import Draft, View
from device_sdk.vault.files import VaultFiles, unavailable
from device_sdk.vault.mark import Mark, Note
from device_sdk.vault.storage import VaultStorage
from device_sdk.vault.vault import Vault

if TYPE_CHECKING:
    from pathlib import Path

    from device_sdk.key_stores import KeyStore


def salvage(directory: Path, key_store: KeyStore) -> Vault:
    """The vault in `directory`, although `Vault.open` says `VaultBroken`: a person's decision.

    What belongs to servers is dropped, so the device enrols again. The device's own records stay: they are the keys of
    its ledger, never change, and so an old copy is as good as the newest. The ledger judges its own age itself.
    """
    files = VaultFiles(directory)
    if not files.database.exists():
        raise VaultBroken
    with files.locked():
        storage = VaultStorage(files.database)
        try:
            with storage.writing():
                draft = Draft(storage, View.load(storage, key_store, None), after=_marked(files))
                for server in [scope for scope in draft.view.keys if scope != OF_THE_DEVICE]:
                    draft.drop_server(server)
                view = draft.finish()
        finally:
            storage.close()
        with unavailable("marked", "salvage it again"):
            Mark.create(files.mark, Note(view.header.device, view.index.generation))
    vault = Vault.open(directory, key_store)
    # The records that were lost carry counters that will be used again: under other keys they open nowhere.
    try:
        vault.rotate()
    except BaseException:
        vault.close()
        raise
    emit("vault_salvaged")
    return vault


def _marked(files: VaultFiles) -> int:
    """How far the vault had come, as far as the mark still says."""
    if not files.mark.exists():
        return 0
    with unavailable("read"):
        mark = Mark.open(files.mark)
        try:
            note = mark.read()
        finally:
            mark.close()
    return 0 if note is None else note.generation
