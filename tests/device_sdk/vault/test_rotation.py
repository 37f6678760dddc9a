"""Keys are replaced without losing a record; a server's are destroyed for good, the ledger's never."""

from __future__ import annotations

import shutil

import pytest

from device_sdk.errors import KeyUnavailable, VaultBroken
from device_sdk.key_stores import Argon2Cost, FileKeyStore, PassphraseKeyStore
from device_sdk.vault import OF_THE_DEVICE, Vault
from tests.device_sdk.vault import raw
from tests.device_sdk.vault.lives import OTHER_SERVER, SERVER

CHEAP = Argon2Cost(iterations=2, lanes=1, memory_kib=19 * 1024)


class FailsAt(FileKeyStore):
    """A key store that fails at one of its deeds."""

    def __init__(self, path, deed):
        super().__init__(path)
        self.deed = deed

    def create(self, name):
        self._fail("create")
        return super().create(name)

    def discard(self, name):
        self._fail("discard")
        super().discard(name)

    def _fail(self, deed):
        if deed == self.deed:
            raise KeyUnavailable("the store is locked")


def keys_in(path):
    return path.read_text().splitlines()


def test_rotation_changes_every_sealed_byte_and_no_content(filled, key_store, tmp_path):
    before = {*raw.sealed_records(filled).values(), raw.part(filled, "keys"), raw.part(filled, "index")}
    old_keys = keys_in(tmp_path / "keys/device.key")
    with Vault.open(filled, key_store) as vault:
        vault.rotate()
        assert vault.table(SERVER, "table").get("a") == b"content of a"
    after = {*raw.sealed_records(filled).values(), raw.part(filled, "keys"), raw.part(filled, "index")}
    assert len(before) == len(after) == 7
    assert not before & after
    new_keys = keys_in(tmp_path / "keys/device.key")
    assert len(new_keys) == 1
    assert new_keys != old_keys


def test_a_copy_from_before_a_rotation_does_not_open_with_the_key_of_today(filled, key_store, tmp_path):
    shutil.copytree(filled, tmp_path / "copy")
    with Vault.open(filled, key_store) as vault:
        vault.rotate()
    with pytest.raises(KeyUnavailable):
        Vault.open(tmp_path / "copy", key_store)


def test_shredding_takes_a_servers_records_and_nothing_else(filled, key_store):
    with Vault.open(filled, key_store) as vault:
        vault.shred(SERVER)
    with Vault.open(filled, key_store) as vault:
        assert vault.servers() == [OTHER_SERVER]
        assert vault.table(SERVER, "table").names() == []
        assert vault.table(OTHER_SERVER, "table").get("a") == b"another server's a"
        assert vault.table(OF_THE_DEVICE, "keys").get("ledger") == b"the ledger's keys"


def test_what_was_shredded_cannot_be_read_from_a_copy_of_the_disk(filled, key_store, tmp_path):
    shutil.copytree(filled, tmp_path / "copy")
    with Vault.open(filled, key_store) as vault:
        vault.shred(SERVER)
    with pytest.raises(KeyUnavailable):
        Vault.open(tmp_path / "copy", key_store)


def test_without_a_new_key_a_copy_of_the_disk_could_still_be_read(filled, key_store, tmp_path):
    """The broken twin: shredding that only deletes rows."""
    shutil.copytree(filled, tmp_path / "copy")
    with Vault.open(filled, key_store) as vault, vault._drafting() as draft:
        draft.drop_server(SERVER)
    with Vault.open(tmp_path / "copy", key_store) as vault:
        assert vault.table(SERVER, "table").get("a") == b"content of a"


def test_shredding_leaves_none_of_the_sealed_bytes_in_the_files(filled, key_store):
    sealed = raw.sealed_records(filled)[1]
    with Vault.open(filled, key_store) as vault:
        vault.shred(SERVER)
    assert sealed not in raw.everything_on_disk(filled)


def test_an_unreadable_record_stays_unreadable_and_stops_no_rotation(filled, key_store):
    raw.overwrite_record(filled, 1, b"altered")
    with Vault.open(filled, key_store) as vault:
        vault.rotate()
        with pytest.raises(VaultBroken):
            vault.table(SERVER, "table").get("a")
        assert vault.table(SERVER, "table").get("b") == b"content of b"
        vault.shred(SERVER)
        assert vault.table(OF_THE_DEVICE, "keys").get("ledger") == b"the ledger's keys"


def test_keys_are_not_replaced_in_the_middle_of_other_changes(filled, key_store):
    with Vault.open(filled, key_store) as vault:
        with vault.changing(), pytest.raises(RuntimeError, match="not inside"):
            vault.rotate()
        assert vault.table(SERVER, "table").get("a") == b"content of a"


@pytest.mark.parametrize("deed", ["create", "discard"])
def test_a_store_that_fails_in_a_rotation_loses_nothing(filled, key_store, tmp_path, deed):
    failing = FailsAt(tmp_path / "keys/device.key", deed)
    with Vault.open(filled, failing) as vault, pytest.raises(KeyUnavailable):
        vault.rotate()
    with Vault.open(filled, key_store) as vault:
        assert vault.table(SERVER, "table").get("a") == b"content of a"
    assert len(keys_in(tmp_path / "keys/device.key")) == 1


def test_the_key_can_move_to_another_store(filled, key_store, tmp_path):
    passphrase = PassphraseKeyStore(lambda: "correct horse battery", CHEAP)
    with Vault.open(filled, key_store) as vault:
        vault.rotate(to=passphrase)
        assert vault.store_kind == "passphrase"
        vault.table(SERVER, "table").put("c", b"later")
    assert keys_in(tmp_path / "keys/device.key") == []
    with pytest.raises(KeyUnavailable, match="kept in the store 'passphrase'"):
        Vault.open(filled, key_store)
    with Vault.open(filled, passphrase) as vault:
        assert vault.table(SERVER, "table").get("c") == b"later"
        vault.rotate(to=key_store)
    with Vault.open(filled, key_store) as vault:
        assert vault.table(SERVER, "table").get("a") == b"content of a"
