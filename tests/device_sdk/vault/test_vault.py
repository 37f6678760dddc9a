"""What is put in a vault comes out again, whole or not at all, and stands nowhere in clear."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from device_sdk.errors import VaultUnavailable
from device_sdk.vault import OF_THE_DEVICE, Vault
from device_sdk.vault.storage import VaultStorage
from tests.architecture.repository import ROOT
from tests.device_sdk.vault.lives import OTHER_SERVER, SERVER
from tests.device_sdk.vault.raw import everything_on_disk


def test_a_record_is_there_after_reopening(vault, state, key_store):
    vault.table(SERVER, "table").put("a", b"first")
    vault.table(SERVER, "table").put("a", b"second")
    vault.close()
    with Vault.open(state, key_store) as again:
        assert again.table(SERVER, "table").get("a") == b"second"


def test_what_was_never_put_is_none(vault):
    assert vault.table(SERVER, "table").get("a") is None
    vault.table(SERVER, "table").drop("a")
    assert vault.table(SERVER, "table").names() == []


def test_tables_and_servers_keep_apart(filled, key_store):
    with Vault.open(filled, key_store) as vault:
        assert vault.table(SERVER, "table").names() == ["a", "b"]
        assert vault.table(SERVER, "other table").get("a") == b"another table's a"
        assert vault.table(OTHER_SERVER, "table").get("a") == b"another server's a"
        assert vault.servers() == sorted([SERVER, OTHER_SERVER])


def test_undisturbed_others_are_not_asked_for_and_own_changes_are_seen(vault, state, key_store):
    table = vault.table(SERVER, "table")
    table.put("a", b"ours")
    with Vault.open(state, key_store) as other, vault.undisturbed():
        other.table(SERVER, "table").put("a", b"theirs")
        assert table.get("a") == b"ours"
        with vault.undisturbed():
            table.put("b", b"new")
        assert table.contents() == {"a": b"theirs", "b": b"new"}  # writing asks
        other.table(SERVER, "table").put("a", b"theirs again")
        assert table.get("a") == b"theirs"
    assert table.get("a") == b"theirs again"


def test_one_thread_undisturbed_does_not_keep_another_from_looking(vault, state, key_store):
    table, seen = vault.table(SERVER, "table"), []
    with Vault.open(state, key_store) as other, vault.undisturbed():
        other.table(SERVER, "table").put("a", b"theirs")
        reader = threading.Thread(target=lambda: seen.append(table.get("a")))
        reader.start()
        reader.join()
    assert seen == [b"theirs"]


def test_changes_in_one_block_are_on_disk_together_or_not_at_all(vault):
    table = vault.table(SERVER, "table")
    table.put("a", b"before")

    def change_and_fail():
        with vault.changing():
            table.put("a", b"after")
            with vault.changing():
                table.put("b", b"new")
            assert table.get("a") == b"after"
            assert table.names() == ["a", "b"]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_and_fail()
    assert table.get("a") == b"before"
    assert table.names() == ["a"]


def test_two_open_vaults_see_each_others_changes(vault, state, key_store):
    with Vault.open(state, key_store) as other:
        for number in range(5):
            vault.table(SERVER, "table").put("a", b"%d" % number)
            assert other.table(SERVER, "table").get("a") == b"%d" % number
            other.table(SERVER, "table").put("b", b"%d" % number)
            assert vault.table(SERVER, "table").get("b") == b"%d" % number


WRITES = textwrap.dedent("""
    import sys
    from pathlib import Path
    from device_sdk.key_stores import FileKeyStore
    from device_sdk.vault import Vault
    state, key, server, content = sys.argv[1:]
    with Vault.open(Path(state), FileKeyStore(Path(key))) as vault:
        vault.table(server, "table").put("a", content.encode())
""")


def written_elsewhere(state, tmp_path, content):
    """Have another process write record `a`."""
    key = tmp_path / "keys/device.key"
    subprocess.run([sys.executable, "-c", WRITES, str(state), str(key), SERVER, content], cwd=ROOT, check=True)


def test_what_was_read_is_read_again_once_another_process_has_written(vault, state, tmp_path):
    table = vault.table(SERVER, "table")
    table.put("a", b"before")
    assert table.get("a") == b"before"
    written_elsewhere(state, tmp_path, "after")
    assert table.get("a") == b"after"
    written_elsewhere(state, tmp_path, "later")
    with vault.changing():
        assert table.get("a") == b"later"


def test_a_vault_that_does_not_ask_who_has_written_misses_it(vault, state, tmp_path, monkeypatch):
    """The broken twin of the test above."""
    table = vault.table(SERVER, "table")
    monkeypatch.setattr(VaultStorage, "version", lambda self: 1)
    table.put("a", b"before")
    assert table.get("a") == b"before"
    written_elsewhere(state, tmp_path, "after")
    assert table.get("a") == b"before"


def test_a_transaction_that_failed_leaves_what_was_read_as_it_was(vault):
    table = vault.table(SERVER, "table")
    table.put("a", b"before")

    def change_and_fail():
        with vault.changing():
            table.put("a", b"after")
            table.put("b", b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_and_fail()
    assert table.contents() == {"a": b"before"}


def test_a_vault_follows_a_rotation_by_another_process(vault, state, key_store):
    with Vault.open(state, key_store) as other:
        vault.table(SERVER, "table").put("a", b"content")
        other.rotate()
        assert vault.table(SERVER, "table").get("a") == b"content"
        vault.table(SERVER, "table").put("b", b"more")
        assert other.table(SERVER, "table").get("b") == b"more"


def test_many_threads_lose_no_write(vault):
    def write(name):
        for number in range(10):
            vault.table(SERVER, "table").put(f"{name}-{number}", b"x")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(vault.table(SERVER, "table").names()) == 40


@pytest.mark.integration
def test_processes_that_write_while_another_rotates_lose_nothing(vault, state, tmp_path):
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from device_sdk.key_stores import FileKeyStore
        from device_sdk.vault import Vault
        name, state, key = sys.argv[1:]
        with Vault.open(Path(state), FileKeyStore(Path(key))) as vault:
            for number in range(12):
                if name == "rotates":
                    vault.rotate()
                else:
                    vault.table("server", "table").put(f"{name}-{number}", name.encode())
    """)
    names = ["rotates", "one", "two"]
    command = [sys.executable, "-c", script]
    key = tmp_path / "keys/device.key"
    racers = [subprocess.Popen([*command, name, str(state), str(key)], cwd=ROOT) for name in names]
    assert [racer.wait() for racer in racers] == [0, 0, 0]
    table = vault.table("server", "table")
    assert len(table.names()) == 24
    assert {name: table.get(name) for name in table.names()} == {
        f"{name}-{number}": name.encode() for name in ("one", "two") for number in range(12)
    }
    assert len(key.read_text().splitlines()) == 1


def test_names_and_contents_stand_nowhere_in_clear(filled):
    found = everything_on_disk(filled)
    for secret in (b"content of", b"fl.example.com", b"other table", b"ledger"):
        assert secret not in found
    assert b"covey" not in found.replace(b"covey-vault-v1", b"")


def test_only_the_owner_can_read_the_files(filled):
    assert {oct(path.stat().st_mode & 0o777) for path in filled.iterdir()} == {"0o600"}
    assert filled.stat().st_mode & 0o777 == 0o700


def test_a_closed_vault_says_so(vault):
    vault.close()
    vault.close()
    with pytest.raises(VaultUnavailable, match="open it again"):
        vault.table(SERVER, "table").get("a")


def test_a_vault_whose_file_was_replaced_writes_no_further(vault, state):
    (state / "vault.db").rename(state / "moved")
    with pytest.raises(VaultUnavailable, match="replaced"):
        vault.table(SERVER, "table").put("a", b"lost")


def test_a_forked_child_must_open_its_own(vault, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(VaultUnavailable, match="in the child"):
        vault.table(SERVER, "table").get("a")


def test_a_directory_that_cannot_be_written_is_unavailable(tmp_path, key_store):
    (tmp_path / "state").write_text("a file in the way")
    with pytest.raises(VaultUnavailable):
        Vault.open(tmp_path / "state", key_store)


def test_the_devices_own_records_cannot_be_shredded(vault):
    with pytest.raises(ValueError, match="ledger"):
        vault.shred(OF_THE_DEVICE)
