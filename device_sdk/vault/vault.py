"""The vault: what a device keeps, sealed, and able to forget.

Records belong to a server and a table, or to the device itself. Each is sealed under its server's key and bound
to its place and version, so a record that was altered, swapped, copied, set back or cut does not open: `VaultBroken`.
A key-encryption key, kept elsewhere (`device_sdk.key_stores`), seals those keys. `rotate` replaces all of them,
`shred` also destroys a server's; a kill at any point leaves the vault as it was before or as it will be after.

What no file can prevent is that *all* files are set back together; the ledger's countersignatures show it at the next
contact with a server. A vault may be used by many threads and processes at once; after a fork, open it anew.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from device_sdk.errors import VaultBroken, VaultUnavailable
from device_sdk.events import emit
from device_sdk.vault.contents import OF_THE_DEVICE, Header, RecordName
from device_sdk.vault.draft import Draft, View, write_first
from device_sdk.vault.files import VaultFiles, unavailable
from device_sdk.vault.mark import Mark, Note
from device_sdk.vault.storage import VaultStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_sdk.key_stores import KeyStore


class Vault:
    """The open vault of one device. `open` is the way in."""

    def __init__(self, files: VaultFiles, storage: VaultStorage, mark: Mark, key_store: KeyStore) -> None:
        self._files, self._storage, self._mark, self._key_store = files, storage, mark, key_store
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._known: View | None = None
        self._reader = threading.local()
        self._draft: Draft | None = None
        self._closed = False

    @classmethod
    def open(cls, directory: Path, key_store: KeyStore) -> Self:
        """The vault in `directory`, checked; a new one where there never was one."""
        files = VaultFiles(directory)
        files.make()
        with files.locked():
            vault = cls(files, *_opened(files), key_store)
            try:
                vault._begin()
            except BaseException:
                vault.close()
                raise
        return vault

    @property
    def device(self) -> str:
        """A random name, made with the vault and bound into every record."""
        return self._view().header.device

    @property
    def directory(self) -> Path:
        """Where its files are, and the ledger's beside them."""
        return self._files.directory

    @property
    def generation(self) -> int:
        """How often it was written, its creation included."""
        return self._view().index.generation

    @property
    def store_kind(self) -> str:
        """The kind of store that keeps the key-encryption key."""
        return self._key_store.kind

    def table(self, server: str, name: str) -> VaultTable:
        """The records of one kind that belong to `server`, or to the device itself (`OF_THE_DEVICE`)."""
        return VaultTable(self, server, name)

    def servers(self) -> list[str]:
        """The servers that anything is kept for."""
        return sorted(scope for scope in self._view().keys if scope != OF_THE_DEVICE)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Everything changed inside, by this thread, is on disk when this ends, or none of it is; may be nested."""
        with self._drafting():
            yield

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, this thread reads what this process knows, without asking whether another has written.

        For what only the process that drives the device writes. Writing asks all the same.
        """
        before, self._reader.is_undisturbed = self._is_undisturbed(), True
        try:
            yield
        finally:
            self._reader.is_undisturbed = before

    def rotate(self, to: KeyStore | None = None) -> None:
        """Replace every key, and seal everything anew; `to` moves the key-encryption key to another store."""
        self._rekey(to or self._key_store)
        emit("keys_rotated", store=self._key_store.kind)

    def forget_past(self) -> None:
        """Empty the database's log, in which older versions of records may stand; a reader may delay it."""
        with self._mutex:
            self._storage.empty_log()

    def shred(self, server: str) -> None:
        """Destroy what is kept for `server` by destroying its key; what belongs to the device itself stays.

        The other keys are replaced too: what a disk may still hold of the old ones opens nothing any more.
        """
        if server == OF_THE_DEVICE:
            raise ValueError("the device's own records hold the keys of its ledger and are not shredded")
        self._rekey(self._key_store, without=server)
        emit("server_shredded", server=server)

    def close(self) -> None:
        """Make the mark durable and let go of the files; closing twice is harmless."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._storage.close()
            with unavailable("closed", "what was written is on disk"):
                self._mark.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        with unavailable("read"):
            note = self._mark.read()
        if note is None:
            raise VaultBroken
        with self._storage.reading():
            blank = self._storage.is_blank()
        if blank and note.generation:
            raise VaultBroken  # there was a database, and it is gone
        if blank:
            self._create(note.device)
        view = self._view()
        if view.header.device != note.device or view.index.generation < note.generation:
            raise VaultBroken
        self._advance_mark(view)
        self._discard_spare()

    def _create(self, device: str) -> None:
        name = f"{device}-1"
        key, parameters = self._key_store.create(name)
        header = Header(device, name, self._key_store.kind, parameters, keys_generation=1)
        with self._storage.writing():
            write_first(self._storage, header, key)
        emit("vault_created", store=self._key_store.kind)

    def _rekey(self, store: KeyStore, without: str | None = None) -> None:
        # A key that is about to be made, or was replaced, stands in the index as spare until it is discarded, so
        # that a kill in between leaves no key behind.
        with self._mutex, self._files.locked():
            if self._draft is not None:
                raise RuntimeError("keys are replaced in several steps, each durable, so not inside `changing`")
            self._discard_spare()
            with self._drafting() as draft:
                name = f"{draft.view.header.device}-{draft.generation}"
                draft.note_spare(name, store.kind)
            key, parameters = store.create(name)
            with self._drafting() as draft:
                if without is not None:
                    draft.drop_server(without)
                header = Header(draft.view.header.device, name, store.kind, parameters, draft.generation)
                draft.rekey(header, key)
            old, self._key_store = self._key_store, store
            self._discard_spare(old)
            self._storage.empty_log()

    def _discard_spare(self, store: KeyStore | None = None) -> None:
        store = store or self._key_store
        name, kind = self._view().index.spare
        if not name:
            return
        if kind != store.kind:
            # It opens nothing; whoever opens the vault with that store's kind again will discard it.
            emit("key_left_behind", store=kind)
            return
        store.discard(name)
        with self._drafting() as draft:
            draft.note_spare()
        emit("key_discarded", store=kind)

    @contextmanager
    def _drafting(self) -> Iterator[Draft]:
        self._check_process()
        with self._mutex:
            if self._draft is not None:
                yield self._draft
                return
            with self._storage.writing():
                self._draft = Draft(self._storage, View.load(self._storage, self._key_store, self._known))
                try:
                    yield self._draft
                    view = self._draft.finish()
                finally:
                    self._draft = None
            self._known = view
            self._advance_mark(view)

    def _view(self) -> View:
        """What the vault holds now, or will hold after the transaction that this thread is in."""
        self._check_process()
        with self._mutex:
            if self._draft is not None:
                return self._draft.view
            is_newest = self._known is not None and (
                self._is_undisturbed() or self._known.version == self._storage.version()
            )
            if self._known is None or not is_newest:
                with self._storage.reading():
                    self._known = View.load(self._storage, self._key_store, self._known)
            return self._known

    def _is_undisturbed(self) -> bool:
        return getattr(self._reader, "is_undisturbed", False)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise VaultUnavailable(
                "this vault was opened before the process forked; open it again in the child; nothing was changed"
            )

    def _advance_mark(self, view: View) -> None:
        with unavailable("marked", "what was written is on disk"):
            self._mark.advance(Note(view.header.device, view.index.generation))


class VaultTable:
    """Records of one kind, by name. A write is durable when it returns."""

    def __init__(self, vault: Vault, server: str, name: str) -> None:
        self._vault, self._server, self._name = vault, server, name

    def get(self, record: str) -> bytes | None:
        """The content of a record; none if there is no such record; `VaultBroken` if it does not open."""
        return self._vault._view().read(self._key(record))

    def put(self, record: str, content: bytes) -> None:
        with self._vault._drafting() as draft:
            draft.put(self._key(record), content)

    def drop(self, record: str) -> None:
        """Remove a record; one that is not there is no error."""
        with self._vault._drafting() as draft:
            draft.drop(self._key(record))

    def names(self) -> list[str]:
        return sorted(self.contents())

    def contents(self) -> dict[str, bytes | None]:
        """Every record by its name; none for one that does not open."""
        view, where = self._vault._view(), (self._server, self._name)
        return {name.record: view.records.get(name) for name in view.index.entries if name[:2] == where}

    def _key(self, record: str) -> RecordName:
        return RecordName(self._server, self._name, record)


def _opened(files: VaultFiles) -> tuple[VaultStorage, Mark]:
    if not files.mark.exists():
        if files.database.exists():
            raise VaultBroken  # the mark is made first, so it was taken away
        with unavailable("created"):
            Mark.create(files.mark, Note(secrets.token_hex(16), 0))
    with unavailable("opened"):
        mark = Mark.open(files.mark)
    try:
        return VaultStorage(files.database), mark
    except BaseException:
        mark.close()
        raise
