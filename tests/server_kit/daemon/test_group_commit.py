"""Updates wait for company only while nobody could go on without it, and nothing is acknowledged that is not stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_kit.daemon import group_commit, live_desk
from server_kit.daemon.gathering import Patience
from server_kit.daemon.group_commit import GroupCommit
from server_kit.daemon.spool import Parcel
from server_kit.store.memory import MemoryStore
from tests.server_kit.daemon.paper_server import PaperDevice, PaperServer
from tests.server_kit.store.contract import asked
from tests.server_kit.store.deliveries import update

FOR_EVER = 1000.0
SOON = 10.0


class CountingStore(MemoryStore):
    """Notes how many arrivals each transaction had."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []

    def accept(self, arrivals: Any, now_seconds: float) -> list[bool]:
        self.together.append(len(arrivals))
        return super().accept(arrivals, now_seconds)


@pytest.fixture
def store() -> CountingStore:
    store = CountingStore()
    asked(store, "a", "b", "c")
    return store


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperServer]:
    """A round of four in which whoever waits for company waits for ever."""
    monkeypatch.setattr(group_commit, "COMPANY_SECONDS", FOR_EVER)
    monkeypatch.setattr(live_desk, "_LAST_FEW", 0)
    server = PaperServer(tmp_path, patience=Patience(waiting_needed=4))
    yield server
    server.close()


def begin(device: PaperDevice) -> Any:
    assert device.task is not None
    header, payload = device.upload_of(device.task, 1)
    _, storing = device.server.desk.begin_accept(device.id, header, Parcel(header.payload, memoryview(payload)))
    return storing


def test_those_that_can_wait_share_a_transaction(store, monkeypatch):
    monkeypatch.setattr(group_commit, "COMPANY_SECONDS", FOR_EVER)
    commit = GroupCommit(store, lambda: 1.0, lambda _: None, lambda arrivals: len(arrivals) < 3)
    first, second = commit.begin(update("a", "a")), commit.begin(update("b", "b"))
    assert not first.done()
    assert not second.done()
    assert store.last_receipt(update("a", "a").receipt.device_key) is None
    third = commit.begin(update("c", "c"))
    assert all(storing.result(SOON) for storing in (first, second, third))
    assert store.together == [3]
    commit.close()


def test_nobody_waits_for_ever(store, monkeypatch):
    monkeypatch.setattr(group_commit, "COMPANY_SECONDS", 0.01)
    commit = GroupCommit(store, lambda: 1.0, lambda _: None, lambda _: True)
    assert commit.begin(update("a", "a")).result(SOON)
    commit.close()


def test_what_waits_for_company_is_stored_at_the_end(store, monkeypatch):
    monkeypatch.setattr(group_commit, "COMPANY_SECONDS", FOR_EVER)
    commit = GroupCommit(store, lambda: 1.0, lambda _: None, lambda _: True)
    storing = commit.begin(update("a", "a"))
    commit.close()
    assert storing.result(0)
    assert store.together == [1]


def test_the_update_that_a_round_waits_for_is_stored_at_once_with_those_that_waited(server):
    *early, last = server.devices(4)
    server.turn()
    waiting = [begin(device) for device in early]
    assert not any(storing.done() for storing in waiting)
    assert begin(last).result(SOON)
    assert all(storing.result(SOON) for storing in waiting)
    server.turn()
    assert server.store.cohorts()[0].round == 1


def test_a_desk_that_lets_the_last_update_wait_would_hold_up_the_round(server, monkeypatch):
    monkeypatch.setattr(server.desk._commit, "_can_wait", lambda _: True)
    devices = server.devices(4)
    server.turn()
    assert not any(_is_stored_soon(storing) for storing in [begin(device) for device in devices])


def test_the_last_few_do_not_wait_for_each_other(server, monkeypatch):
    monkeypatch.setattr(live_desk, "_LAST_FEW", 2)
    first, second, *_ = server.devices(4)
    server.turn()
    waiting = begin(first)
    assert not _is_stored_soon(waiting)
    assert begin(second).result(SOON)
    assert waiting.result(SOON)


def test_an_answer_to_a_question_waits_for_nobody(server):
    device, *_ = server.devices(4)
    server.turn()
    header = device.keys.summary(bytes(80))
    _, storing = server.desk.begin_accept(device.id, header, Parcel(header.payload, memoryview(bytes(80))))
    assert storing.result(SOON)


def test_an_update_waits_for_nobody_where_nothing_is_known_of_its_round(server):
    device, *_ = server.devices(4)
    server.turn()
    server.desk.told.out_when_due.clear()
    assert begin(device).result(SOON)


def _is_stored_soon(storing: Any) -> bool:
    try:
        return bool(storing.result(0.2))
    except TimeoutError:
        return False
