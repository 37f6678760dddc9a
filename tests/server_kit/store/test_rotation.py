"""Keys rotate while a server works; nothing stays under an old key, and no key goes too early."""

from __future__ import annotations

import threading

import pytest

from server_kit.errors import CorruptRecord
from server_kit.store.key_ring import Sealer
from server_kit.store.protocol import Asking
from server_kit.store.schema import SEALED
from tests.server_kit.store.deliveries import cohort, content_of, task, update
from tests.server_kit.store.places import CANARY, CONTENTS, read_all


def key_numbers(place):
    queries = [f"SELECT {one.column} FROM {one.table.name} WHERE {one.column} IS NOT NULL" for one in SEALED]
    return {row[0][:4] for query in queries for row in place.select(query)}


def test_after_a_rotation_everything_is_under_the_new_key_and_the_old_one_is_gone(filled):
    store = filled.open()
    assert store.rotate() == 6 + 4 + 2 + 2 + 2
    assert key_numbers(filled) == {bytes([0, 0, 0, 2])}
    assert filled.select("SELECT id FROM sealing_keys") == [(2,)]
    store.close()
    again = filled.open()
    assert read_all(again)[1] == CONTENTS
    again.close()


def test_others_go_on_while_keys_rotate(place):
    """Another process's store that opened before the rotation seals and opens as if nothing had happened."""
    store, other = place.open(), place.open()
    names = [str(number) for number in range(60)]
    other.ask(Asking([task(name) for name in names], [cohort()]))
    done = threading.Event()

    def rotate():
        while not done.is_set():
            store.rotate()

    rotating = threading.Thread(target=rotate)
    rotating.start()
    try:
        for name in names:
            assert other.accept([update(name, name, content=name.encode())], 150.0) == [True]
            assert content_of(other, name) == name.encode()
    finally:
        done.set()
        rotating.join()
    assert [content_of(store, name) for name in names] == [name.encode() for name in names]
    assert len(list(store.receipts())) == len(names)
    for one in (store, other):
        one.close()


def test_a_record_that_does_not_open_does_not_stop_a_rotation(filled):
    filled.tamper("UPDATE receipts SET body = x'0000000100' WHERE rowid = 1")
    store = filled.open()
    store.rotate()
    assert content_of(store, "a") == CANARY
    with pytest.raises(CorruptRecord):
        list(store.receipts())
    store.close()


def test_a_rotation_that_was_killed_is_ended_by_the_next(filled, monkeypatch):
    store = filled.open()
    with monkeypatch.context() as killed:
        killed.setattr("server_kit.store.rotation._walk", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.rotate()
    assert content_of(store, "a") == CANARY
    store.rotate()
    assert filled.select("SELECT id FROM sealing_keys") == [(3,)]
    assert read_all(store)[1][0] == CANARY
    store.close()


def test_a_rotation_that_drops_the_old_key_too_early_is_caught(filled, monkeypatch):
    monkeypatch.setattr("server_kit.store.rotation._walk", lambda *_: 0)
    filled.open().rotate()
    store = filled.open()
    with pytest.raises(CorruptRecord):
        read_all(store)
    store.close()


def test_a_writer_that_does_not_look_for_a_newer_key_is_caught(place, monkeypatch):
    store, other = place.open(), place.open()
    other.ask(Asking([task("a")], [cohort()]))
    store.rotate()
    stale = Sealer(*next(iter(other._ring._known.items())))
    monkeypatch.setattr(other._ring, "sealer", lambda session: stale)
    assert other.accept([update("a", "a")], 150.0) == [True]
    with pytest.raises(CorruptRecord):
        content_of(place.open(), "a")
    for one in (store, other):
        one.close()
