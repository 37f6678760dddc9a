"""One transaction on a vault: what it found, and what it will leave.

Everything a draft writes belongs to one SQLite transaction; `finish` seals the new index, and the keys if they
changed, so that the vault is on disk either as it was or as the draft leaves it.
"""

from __future__ import annotations

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
    on_disk: tuple[bytes, bytes]
    """Header and index as they were read, to notice that another process has written."""

    @classmethod
    def load(cls, storage: VaultStorage, key_store: KeyStore, known: View | None) -> View:
        """What the disk holds; keys are asked for only where `known` does not have them."""
        on_disk = storage.part("header"), storage.part("index")
        if known is not None and known.on_disk == on_disk:
            return known
        if known is not None and known.on_disk[0] == on_disk[0]:
            header, key, keys = known.header, known.key, known.keys
        else:
            header = Header.from_bytes(on_disk[0])
            _check_kind(header.store, key_store)
            key = key_store.fetch(header.key_name, header.parameters)
            keys = open_keys(key, storage.part("keys"), header)
        index = Index.from_sealed(keys[OF_THE_DEVICE], header.device, on_disk[1])
        # An index that knows of newer keys, or a vault older than one seen before, was set back.
        if index.keys_generation != header.keys_generation or (known and index.generation < known.index.generation):
            raise VaultBroken
        return cls(header, key, keys, index, on_disk)

    def read(self, storage: VaultStorage, name: RecordName) -> bytes | None:
        """The current version of a record; none if there never was one."""
        entry = self.index.entries.get(name)
        if entry is None:
            return None
        return open_record(self.keys, storage.record(entry.number), self.header.device, name, entry.counter)


class Draft:
    """A view that is being changed."""

    def __init__(self, storage: VaultStorage, view: View, after: int = 0) -> None:
        self._storage = storage
        self._found = view
        self.view = view
        self.generation = max(after, view.index.generation) + 1
        """The one that this transaction will be."""

    def put(self, name: RecordName, content: bytes) -> None:
        if name.server not in self.view.keys:
            self.view = replace(self.view, keys={**self.view.keys, name.server: new_key()})
        self.drop(name)
        sealed = seal_record(self.view.keys, content, self.view.header.device, name, self.generation)
        number = self._storage.add_record(sealed)
        self._set_index(self.view.index.with_entry(name, Entry(number, self.generation)))

    def drop(self, name: RecordName) -> None:
        entry = self.view.index.entries.get(name)
        if entry is not None:
            self._storage.drop_record(entry.number)
            self._set_index(self.view.index.without(name))

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
        for name in list(old.index.entries):
            try:
                content = old.read(self._storage, name)
            except VaultBroken:
                continue
            if content is not None:
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
        return replace(self.view, on_disk=(self.view.header.to_bytes(), sealed))

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
