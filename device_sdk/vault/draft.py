"""One transaction on a vault: what it found, and what it will leave.

Everything a draft writes belongs to one SQLite transaction; `finish` seals the new index, and the keys if they
changed, so that the vault is on disk either as it was or as the draft leaves it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_sdk.errors import KeyUnavailable, VaultBroken
from device_sdk.vault.contents import (
    OF_THE_DEVICE,
    Entry,
    Header,
    Index,
    Keys,
    RecordName,
    new_key,
    open_keys,
    open_record,
    seal_keys,
    seal_record,
)

if TYPE_CHECKING:
    from device_sdk.key_stores import KeyStore
    from device_sdk.vault.storage import VaultStorage


@dataclass(frozen=True, repr=False)
class View:
    """A vault as it stands on disk, opened."""

    header: Header
    key: bytes
    keys: Keys
    index: Index
    records: dict[RecordName, bytes]
    """What the records say; those that do not open are missing."""
    version: int
    """The storage's when this was read: while it is the same, all of this is what the disk holds."""

    @classmethod
    def load(cls, storage: VaultStorage, key_store: KeyStore, known: View | None) -> View:
        """What the disk holds; keys are asked for only where `known` does not have them."""
        version = storage.version()
        if known is not None and known.version == version:
            return known  # nobody else has written, and what this process writes it knows
        header = Header.from_bytes(storage.part("header"))
        if known is not None and known.header == header:
            key, keys = known.key, known.keys
        else:
            _check_kind(header.store, key_store)
            key = key_store.fetch(header.key_name, header.parameters)
            keys = open_keys(key, storage.part("keys"), header)
        index = Index.from_sealed(keys[OF_THE_DEVICE], header.device, storage.part("index"))
        # An index that knows of newer keys, or a vault older than one seen before, was set back.
        if index.keys_generation != header.keys_generation or (known and index.generation < known.index.generation):
            raise VaultBroken
        records = {}
        for name, entry in index.entries.items():
            with suppress(VaultBroken):
                sealed = storage.record(entry.number)
                records[name] = open_record(keys, sealed, header.device, name, entry.counter)
        return cls(header, key, keys, index, records, version)

    def read(self, name: RecordName) -> bytes | None:
        """The current version of a record; none if there never was one; `VaultBroken` if it does not open."""
        if name not in self.index.entries:
            return None
        if name not in self.records:
            raise VaultBroken
        return self.records[name]


class Draft:
    """A view that is being changed."""

    def __init__(self, storage: VaultStorage, view: View, after: int = 0) -> None:
        self._storage = storage
        self._found = view
        # Copies, so that a transaction that fails has changed nothing.
        index = replace(view.index, entries=dict(view.index.entries))
        self.view = replace(view, index=index, records=dict(view.records))
        self.generation = max(after, view.index.generation) + 1
        """The one that this transaction will be."""

    def put(self, name: RecordName, content: bytes) -> None:
        if name.server not in self.view.keys:
            self.view = replace(self.view, keys={**self.view.keys, name.server: new_key()})
        self.drop(name)
        sealed = seal_record(self.view.keys, content, self.view.header.device, name, self.generation)
        number = self._storage.add_record(sealed)
        self.view.index.entries[name] = Entry(number, self.generation)
        self.view.records[name] = content

    def drop(self, name: RecordName) -> None:
        entry = self.view.index.entries.pop(name, None)
        if entry is not None:
            self._storage.drop_record(entry.number)
            self.view.records.pop(name, None)

    def note_spare(self, name: str = "", store: str = "") -> None:
        """Remember a key that is to be discarded, before it is made or after it was replaced."""
        self._set_index(replace(self.view.index, spare=(name, store)))

    def drop_server(self, server: str) -> None:
        """Forget a server's records and its key."""
        for name in [name for name in self.view.index.entries if name.server == server]:
            self.drop(name)
        self.view = replace(self.view, keys={scope: key for scope, key in self.view.keys.items() if scope != server})

    def rekey(self, header: Header, key: bytes) -> None:
        """Seal everything under new keys. A record that does not open stays one that does not open."""
        old = self.view
        self.view = replace(old, header=header, key=key, keys={scope: new_key() for scope in old.keys})
        for name, content in list(old.records.items()):
            self.put(name, content)
        self.note_spare(old.header.key_name, old.header.store)

    def finish(self) -> View:
        """Write what changed; the view that the disk will hold once the transaction is committed."""
        if self.view == self._found:
            return self._found
        if self.view.keys != self._found.keys or self.view.key != self._found.key:
            header = replace(self.view.header, keys_generation=self.generation)
            self.view = replace(self.view, header=header)
            self._set_index(replace(self.view.index, keys_generation=self.generation))
            self._storage.set_part("keys", seal_keys(self.view.key, self.view.keys, header))
            self._storage.set_part("header", header.to_bytes())
        self._set_index(replace(self.view.index, generation=self.generation))
        sealed = self.view.index.sealed(self.view.keys[OF_THE_DEVICE], self.view.header.device)
        self._storage.set_part("index", sealed)
        return self.view

    def _set_index(self, index: Index) -> None:
        self.view = replace(self.view, index=index)


def _check_kind(kept_in: str, key_store: KeyStore) -> None:
    if kept_in != key_store.kind:
        raise KeyUnavailable(
            f"this vault's key is kept in the store {kept_in!r}, not in {key_store.kind!r}; open it with that one "
            "(keys.store) or rotate to another; nothing was opened"
        )


def write_first(storage: VaultStorage, header: Header, key: bytes) -> None:
    """Make an empty vault; belongs in a transaction, as all writing does."""
    keys = {OF_THE_DEVICE: new_key()}
    storage.create_tables()
    storage.set_part("header", header.to_bytes())
    storage.set_part("keys", seal_keys(key, keys, header))
    index = Index(generation=1, keys_generation=header.keys_generation)
    storage.set_part("index", index.sealed(keys[OF_THE_DEVICE], header.device))
