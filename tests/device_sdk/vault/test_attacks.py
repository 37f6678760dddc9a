"""Someone who can write to the disk: every record they altered, moved or set back fails to open, with one error."""

from __future__ import annotations

import random

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_sdk.errors import KeyUnavailable, VaultBroken, VaultError, WrongKey
from device_sdk.key_stores import FileKeyStore
from device_sdk.vault import OF_THE_DEVICE, Vault, contents, salvage
from privacy import sealing
from tests.device_sdk.vault import raw
from tests.device_sdk.vault.lives import OTHER_SERVER, SERVER

NUMBER_OF = {"a": 1, "b": 2, "a of another table": 3, "a of another server": 4}


def read_a(directory, key_store):
    with Vault.open(directory, key_store) as vault:
        return vault.table(SERVER, "table").get("a")


def swap(directory, one, other):
    records = raw.sealed_records(directory)
    raw.overwrite_record(directory, one, records[other])
    raw.overwrite_record(directory, other, records[one])


def set_back(directory, key_store):
    """Put an old version of `a` in the place of the newest."""
    old = raw.sealed_records(directory)[NUMBER_OF["a"]]
    with Vault.open(directory, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"newest")
    raw.overwrite_record(directory, max(raw.sealed_records(directory)), old)


ATTACKS = {
    "swapped with another record": lambda state, keys: swap(state, 1, NUMBER_OF["b"]),
    "swapped with another table's": lambda state, keys: swap(state, 1, NUMBER_OF["a of another table"]),
    "swapped with another server's": lambda state, keys: swap(state, 1, NUMBER_OF["a of another server"]),
    "set back": set_back,
    "cut to nothing": lambda state, keys: raw.overwrite_record(state, 1, b""),
    "cut by a byte": lambda state, keys: raw.overwrite_record(state, 1, raw.sealed_records(state)[1][:-1]),
    "lengthened": lambda state, keys: raw.overwrite_record(state, 1, raw.sealed_records(state)[1] + b"\0"),
    "removed": lambda state, keys: raw.remove_record(state, 1),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_record_that_was_tampered_with_does_not_open(filled, key_store, attack):
    ATTACKS[attack](filled, key_store)
    with pytest.raises(VaultBroken) as caught:
        read_a(filled, key_store)
    assert str(caught.value) == str(VaultBroken())
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_the_others_still_open(filled, key_store):
    raw.overwrite_record(filled, 1, b"")
    with Vault.open(filled, key_store) as vault:
        assert vault.table(SERVER, "table").get("b") == b"content of b"
        vault.table(SERVER, "table").put("a", b"written anew")
        assert vault.table(SERVER, "table").get("a") == b"written anew"


TWINS = {
    "swapped with another record": 4,
    "swapped with another table's": 3,
    "set back": 5,
}


@pytest.mark.parametrize(("attack", "forgotten"), TWINS.items())
def test_a_place_that_forgets_one_part_would_let_the_attack_through(
    tmp_path, key_store, monkeypatch, attack, forgotten
):
    """The broken twin: each part of the place is there for a reason."""

    def place(*parts):
        # "covey-vault-v1", "record", device, server, table, record, counter
        kept = [part for index, part in enumerate(parts) if index - 1 != forgotten]
        # Records that are swapped were written one after the other.
        return sealing.place(*(kept if forgotten == 5 else kept[:-1]))

    monkeypatch.setattr(contents, "place", place)
    state = tmp_path / "state"
    with Vault.open(state, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"content of a")
        vault.table(SERVER, "table").put("b", b"content of b")
        vault.table(SERVER, "other table").put("a", b"another table's a")
    ATTACKS[attack](state, key_store)
    assert read_a(state, key_store) in {b"content of a", b"content of b", b"another table's a"}


def test_a_record_of_another_device_does_not_open(filled, key_store, tmp_path):
    other = tmp_path / "other"
    with Vault.open(other, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"content of a")
    raw.overwrite_record(filled, 1, raw.sealed_records(other)[1])
    with pytest.raises(VaultBroken):
        read_a(filled, key_store)


def test_an_old_copy_of_the_database_does_not_open(filled, key_store, tmp_path):
    raw.copy_database(filled, tmp_path / "copy")
    with Vault.open(filled, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"newest")
    raw.put_back_database(tmp_path / "copy", filled)
    with pytest.raises(VaultBroken):
        Vault.open(filled, key_store)


def test_without_the_mark_an_old_copy_would_open(filled, key_store, tmp_path):
    """The broken twin: both set back together are consistent, as the threat model says."""
    raw.copy_database(filled, tmp_path / "copy")
    mark = (filled / "vault.mark").read_bytes()
    with Vault.open(filled, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"newest")
    raw.put_back_database(tmp_path / "copy", filled)
    (filled / "vault.mark").write_bytes(mark)
    assert read_a(filled, key_store) == b"content of a"


def test_an_old_copy_put_back_under_an_open_vault_is_noticed(filled, key_store):
    with Vault.open(filled, key_store) as vault:
        old = raw.part(filled, "index")
        vault.table(SERVER, "table").put("a", b"newest")
        raw.overwrite_part(filled, "index", old)
        with pytest.raises(VaultBroken):
            vault.table(SERVER, "table").get("b")


def test_a_record_altered_under_an_open_vault_is_noticed_though_it_was_read_before(filled, key_store):
    with Vault.open(filled, key_store) as vault:
        table = vault.table(SERVER, "table")
        assert table.get("a") == b"content of a"
        raw.overwrite_record(filled, NUMBER_OF["a"], b"altered")
        with pytest.raises(VaultBroken):
            table.get("a")
        assert table.contents() == {"a": None, "b": b"content of b"}


@pytest.mark.parametrize("name", ["vault.db", "vault.mark"])
def test_a_lost_file_is_noticed(filled, key_store, name):
    (filled / name).unlink()
    with pytest.raises(VaultBroken):
        Vault.open(filled, key_store)


def test_a_torn_mark_is_survived_and_an_erased_one_is_not(filled, key_store):
    mark = filled / "vault.mark"
    whole = mark.read_bytes()
    newest = max((0, 1), key=lambda slot: int(whole[slot * 4096 :].split(b" ")[1]))
    mark.write_bytes(whole[:2048] + bytes(2048) + whole[4096:] if newest else whole[:4096] + bytes(4096))
    read_a(filled, key_store)
    mark.write_bytes(bytes(8192))
    with pytest.raises(VaultBroken):
        Vault.open(filled, key_store)


@pytest.mark.parametrize("part", ["header", "keys", "index"])
def test_altered_bytes_of_the_frame_are_noticed(filled, key_store, part):
    body = raw.part(filled, part)
    for position in {*range(0, len(body), 7), len(body) - 1}:
        raw.overwrite_part(filled, part, body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :])
        with pytest.raises((VaultBroken, KeyUnavailable)):
            Vault.open(filled, key_store)
    raw.overwrite_part(filled, part, body)
    assert read_a(filled, key_store) == b"content of a"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(min_value=0), mask=st.integers(1, 255))
def test_an_altered_byte_of_a_record_is_noticed(filled, key_store, position, mask):
    sealed = raw.sealed_records(filled)[1]
    position %= len(sealed)
    altered = sealed[:position] + bytes([sealed[position] ^ mask]) + sealed[position + 1 :]
    raw.overwrite_record(filled, 1, altered)
    try:
        with pytest.raises(VaultBroken):
            read_a(filled, key_store)
    finally:
        raw.overwrite_record(filled, 1, sealed)


def test_flipped_bytes_anywhere_in_the_file_show_no_wrong_content(filled, key_store):
    """SQLite may not notice a flip; then every record still reads as it was written."""
    whole = (filled / "vault.db").read_bytes()
    chance = random.Random(2026)
    noticed = 0
    for _ in range(150):
        position = chance.randrange(len(whole))
        flipped = whole[:position] + bytes([whole[position] ^ chance.randrange(1, 256)]) + whole[position + 1 :]
        for leftover in filled.glob("vault.db*"):
            leftover.unlink()
        (filled / "vault.db").write_bytes(flipped)
        try:
            assert read_a(filled, key_store) == b"content of a"
        except VaultError:
            noticed += 1
    assert 0 < noticed < 150


def test_a_damaged_page_takes_only_its_own_records_with_it(state, key_store):
    names = [f"record {number}" for number in range(20)]
    with Vault.open(state, key_store) as vault:
        for name in names:
            vault.table(SERVER, "table").put(name, name.encode() * 250)  # each on a page of its own
    whole = bytearray((state / "vault.db").read_bytes())
    page = raw_page_of(state, max(raw.sealed_records(state)) - 10, bytes(whole))
    whole[page * 4096 : page * 4096 + 8] = b"\xff" * 8
    (state / "vault.db").write_bytes(whole)
    with Vault.open(state, key_store) as vault:
        contents = vault.table(SERVER, "table").contents()
        broken = [name for name, content in contents.items() if content is None]
        assert 0 < len(broken) < 5
        assert all(contents[name] == name.encode() * 250 for name in names if name not in broken)
        with pytest.raises(VaultBroken):
            vault.table(SERVER, "table").get(broken[0])


def raw_page_of(directory, number, whole):
    """Where in the file the beginning of a sealed record stands."""
    return whole.index(raw.sealed_records(directory)[number][:64]) // 4096


def test_garbage_in_place_of_the_database_is_one_error(filled, key_store):
    (filled / "vault.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(VaultBroken):
        Vault.open(filled, key_store)


def test_another_key_opens_nothing(filled, key_store, tmp_path):
    foreign = FileKeyStore(tmp_path / "foreign.key")
    name = contents.Header.from_bytes(raw.part(filled, "header")).key_name
    foreign.create(name)
    with pytest.raises(WrongKey):
        Vault.open(filled, foreign)


def test_where_the_platform_lacks_gcm_siv_every_attack_is_noticed_too(tmp_path, key_store, monkeypatch):
    def missing(key):
        raise UnsupportedAlgorithm("no AES-GCM-SIV here")

    monkeypatch.setattr(sealing, "AESGCMSIV", missing)
    state = tmp_path / "state"
    with Vault.open(state, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"content of a")
        vault.table(SERVER, "table").put("b", b"content of b")
    assert raw.sealed_records(state)[1][:1] == b"\x02"
    assert read_a(state, key_store) == b"content of a"
    swap(state, 1, 2)
    with pytest.raises(VaultBroken):
        read_a(state, key_store)


def test_salvage_keeps_the_devices_own_records_and_drops_the_servers(filled, key_store, tmp_path):
    raw.copy_database(filled, tmp_path / "copy")
    with Vault.open(filled, key_store) as vault:
        vault.table(SERVER, "table").put("a", b"newest")
    newest = raw.sealed_records(filled)[max(raw.sealed_records(filled))]
    raw.put_back_database(tmp_path / "copy", filled)
    with salvage(filled, key_store) as vault:
        assert newest not in raw.everything_on_disk(filled)
        assert vault.servers() == []
        assert vault.table(SERVER, "table").get("a") is None
        assert vault.table(OF_THE_DEVICE, "keys").get("ledger") == b"the ledger's keys"
    raw.put_back_database(tmp_path / "copy", filled)
    with pytest.raises(KeyUnavailable):
        Vault.open(filled, key_store)


def test_a_vault_of_the_device_alone_is_salvaged_beyond_the_counters_it_had(state, key_store, tmp_path):
    with Vault.open(state, key_store) as vault:
        vault.table(OF_THE_DEVICE, "keys").put("ledger", b"old")
    raw.copy_database(state, tmp_path / "copy")
    with Vault.open(state, key_store) as vault:
        vault.table(OF_THE_DEVICE, "keys").put("ledger", b"lost")
    lost = list(raw.sealed_records(state).values())
    raw.put_back_database(tmp_path / "copy", state)
    with salvage(state, key_store) as vault:
        vault.table(OF_THE_DEVICE, "keys").put("ledger", b"new")
    raw.overwrite_record(state, max(raw.sealed_records(state)), lost[0])
    with Vault.open(state, key_store) as vault, pytest.raises(VaultBroken):
        vault.table(OF_THE_DEVICE, "keys").get("ledger")


def test_salvage_survives_the_loss_of_the_mark(filled, key_store):
    (filled / "vault.mark").unlink()
    with salvage(filled, key_store) as vault:
        assert vault.table(OF_THE_DEVICE, "keys").get("ledger") == b"the ledger's keys"
    with Vault.open(filled, key_store) as vault:
        assert vault.table(OTHER_SERVER, "table").names() == []


def test_there_is_nothing_to_salvage_without_a_database(state, key_store):
    state.mkdir()
    with pytest.raises(VaultBroken):
        salvage(state, key_store)
