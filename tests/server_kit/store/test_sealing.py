"""What is stored opens in its place only, and leaves no plain trace on the disk."""

from __future__ import annotations

import pytest

from server_kit.errors import CorruptRecord, StoreConflict
from server_kit.store.schema import SEALED
from tests.server_kit.store.deliveries import cohort, content_of, fold, receipt
from tests.server_kit.store.places import CANARY, CONTENTS, LARGE, read_all

NAMES = [f"{column.table.name}.{column.column}" for column in SEALED]


def test_nothing_that_is_sealed_stands_on_the_disk_in_clear(filled):
    seen = b"".join(path.read_bytes() for path in filled.files())
    assert CANARY not in seen
    assert receipt("a", 1, CANARY).payload_hash.encode() not in seen
    assert len(seen) > 2 * len(LARGE)


def test_the_search_for_canaries_would_find_one(filled):
    filled.tamper("UPDATE cohorts SET checkpoint = ?", CANARY.decode())
    assert CANARY in b"".join(path.read_bytes() for path in filled.files())


@pytest.mark.parametrize("column", SEALED, ids=NAMES)
@pytest.mark.parametrize("fault", ["swapped", "cut", "emptied", "flipped", "renumbered"])
def test_a_value_that_was_tampered_with_does_not_open(filled, column, fault):
    table, name = column.table.name, column.column
    rows = filled.select(f"SELECT rowid, {name} FROM {table} WHERE {name} IS NOT NULL ORDER BY rowid")
    (first, own), (_, other) = rows[:2]
    tampered = {
        "swapped": other,
        "cut": own[:-1],
        "emptied": b"",
        "flipped": own[:-1] + bytes([own[-1] ^ 1]),
        "renumbered": bytes([0, 0, 0, 9]) + own[4:],
    }[fault]
    filled.tamper(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", tampered, first)
    store = filled.open()
    with pytest.raises(CorruptRecord):
        read_all(store)
    store.close()


def test_what_nobody_touched_opens(filled):
    store = filled.open()
    receipts, contents, summaries, _, feedback = read_all(store)
    assert len(receipts) == 6
    assert contents == CONTENTS
    assert summaries == [CANARY, CANARY]
    assert [one.message for one in feedback] == [CANARY, CANARY]
    store.close()


@pytest.mark.parametrize("fault", ["pieces swapped", "cut", "last piece gone", "one piece more", "flipped", "gone"])
def test_a_blob_that_was_tampered_with_does_not_open(filled, fault):
    ((name,),) = filled.select("SELECT blob FROM payloads WHERE task = 'c'")
    path = filled.blobs / name
    body = path.read_bytes()
    length = 4 + int.from_bytes(body[:4])
    first, second, rest = body[:length], body[length : 2 * length], body[2 * length :]
    tampered = {
        "pieces swapped": second + first + rest,
        "cut": body[:-1],
        "last piece gone": first + second,
        "one piece more": body + first,
        "flipped": body[: length + 50] + bytes([body[length + 50] ^ 1]) + body[length + 51 :],
        "gone": None,
    }[fault]
    path.unlink()
    if tampered is not None:
        path.write_bytes(tampered)
    store = filled.open()
    with pytest.raises(CorruptRecord):
        content_of(store, "c")
    assert content_of(store, "d") == LARGE + b"2"
    store.close()


def test_a_blob_in_the_place_of_another_does_not_open(filled):
    ((one,), (other,)) = filled.select("SELECT blob FROM payloads WHERE blob IS NOT NULL")
    (filled.blobs / one).write_bytes((filled.blobs / other).read_bytes())
    store = filled.open()
    with pytest.raises(CorruptRecord):
        read_all(store)
    store.close()


def test_a_large_update_is_read_piece_by_piece(filled):
    store = filled.open()
    assert [len(piece) for piece in store.payload("c").pieces()] == [1 << 20, 1 << 20, len(LARGE) - (2 << 20)]
    store.close()


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, 1),
        (0, len(LARGE)),
        (5, 5),
        (1 << 20, (1 << 20) + 7),
        ((1 << 20) - 3, (1 << 20) + 3),
        (len(LARGE) - 4, len(LARGE)),
    ],
)
def test_a_part_of_an_update_is_what_lies_there(filled, start, stop):
    store = filled.open()
    assert store.payload("c").part(start, stop) == b"".join(store.payload("c").pieces())[start:stop]
    store.close()


def test_a_part_does_not_open_where_its_piece_is_altered(filled):
    name = filled.select("SELECT blob FROM payloads WHERE task = 'c'")[0][0]
    content = bytearray((filled.blobs / name).read_bytes())
    content[(1 << 20) + 5000] ^= 1
    (filled.blobs / name).write_bytes(content)
    store = filled.open()
    assert store.payload("c").part(0, 10) == LARGE[:10]
    with pytest.raises(CorruptRecord):
        store.payload("c").part(1 << 20, (1 << 20) + 10)
    with pytest.raises(CorruptRecord):
        store.payload("c").part(len(LARGE) - 1, len(LARGE) + 9)
    store.close()


def test_bytes_that_another_worker_has_folded_meanwhile_are_not_called_corrupt(filled):
    store = filled.open()
    payload = store.payload("c")
    lease = store.acquire("0", "worker", 10.0, 100.0)
    store.finish_fold(store.begin_fold(fold(("c",)), [], lease), lease, cohort(version=1))
    with pytest.raises(StoreConflict):
        list(payload.pieces())
    store.close()


def test_scrubbed_bytes_are_gone_from_table_and_disk(filled):
    sealed = [row[0] for row in filled.select("SELECT body FROM payloads WHERE body IS NOT NULL")]
    store = filled.open()
    lease = store.acquire("0", "worker", 10.0, 100.0)
    begun = store.begin_fold(fold(("a", "c")), ["b", "d"], lease)
    store.finish_fold(begun, lease, cohort(version=1))
    store.close()
    filled.tamper("PRAGMA wal_checkpoint(TRUNCATE)")
    assert [path for path in filled.files() if path.is_relative_to(filled.blobs)] == []
    seen = b"".join(path.read_bytes() for path in filled.files())
    assert all(value[20:60] not in seen for value in sealed)
