"""Bytes that belong to nothing are swept away, and never bytes that belong to something."""

from __future__ import annotations

import pytest

from server_kit.errors import StoreUnavailable
from server_kit.store import parcels
from server_kit.store.protocol import Asking, TaskState
from tests.server_kit.store.deliveries import content_of, task, update
from tests.server_kit.store.places import LARGE


def test_what_a_killed_process_left_is_swept_once_it_is_old(filled):
    kept = set(filled.files())
    store = filled.open()
    content = update("x", "x", content=LARGE)
    parcels.pack(store._ground.blobs, content, now_seconds=900.0)
    assert store.sweep() == 0
    assert store.sweep(older_than_seconds=50.0) == 1
    assert set(filled.files()) - kept == {path for path in filled.files() if path.name.startswith("server.db-")}
    assert content_of(store, "c") == LARGE
    store.close()


def test_an_update_whose_bytes_were_swept_before_it_was_stored_is_not_accepted(place, monkeypatch):
    store = place.open()
    store.ask(Asking([task("a")], []))
    pack = parcels.pack

    def pack_slowly(blobs, arrival, now_seconds):
        parcel = pack(blobs, arrival, now_seconds)
        store.sweep(older_than_seconds=-10.0)
        return parcel

    monkeypatch.setattr("server_kit.store.intake.pack", pack_slowly)
    with pytest.raises(StoreUnavailable, match="send it again"):
        store.accept([update("a", "a", content=LARGE)], 1000.0)
    assert store.task("a").state is TaskState.OUT
    assert list(store.receipts()) == []
    store.close()


def test_bytes_that_were_written_before_another_failed_are_dropped_at_once(place, monkeypatch):
    store = place.open()
    pack = parcels.pack

    def pack_until_the_disk_is_full(blobs, arrival, now_seconds):
        if arrival.device == "b":
            raise StoreUnavailable("no room")
        return pack(blobs, arrival, now_seconds)

    monkeypatch.setattr("server_kit.store.intake.pack", pack_until_the_disk_is_full)
    with pytest.raises(StoreUnavailable):
        store.accept([update(name, name, content=LARGE) for name in ("a", "b")], 1000.0)
    assert store._ground.blobs.list() == []
    store.close()
