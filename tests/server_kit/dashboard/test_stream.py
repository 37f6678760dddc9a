"""The stream tells what has happened once and in order, also to a browser that was away."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from server_kit.daemon.federation_home import Home
from server_kit.dashboard import stream
from server_kit.observer import create_app
from server_kit.observer.store_reader import StoreReader
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import Happening
from tests.server_kit.dashboard.entering import TokenShown
from tests.server_kit.observer.asking import ask, scope_of


@dataclass(frozen=True)
class Event:
    kind: str
    document: Any
    number: int | None


@pytest.fixture(scope="module")
def empty_home(tmp_path_factory):
    return Home.create(tmp_path_factory.mktemp("streamed") / "federation")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.01)
    return MemoryStore()


@pytest.fixture
def followed(empty_home, store):
    return TokenShown(create_app(empty_home, StoreReader(empty_home, open_store=lambda: store)), empty_home)


def happen(store: MemoryStore, count: int) -> None:
    for _ in range(count):
        store.note(Happening("split", 1.0, "0", {"children": ["0.0", "0.1"], "why": "because"}))


def read(app: Any, count: int, headers: dict[str, str] | None = None, path: str = "/api/events") -> list[Event]:
    """The first events of a stream, after which the browser goes away."""
    return asyncio.run(asyncio.wait_for(_read(app, count, headers or {}, path), 30))


async def _read(app: Any, count: int, headers: dict[str, str], path: str) -> list[Event]:
    text, enough = [], asyncio.Event()

    async def receive() -> dict[str, Any]:
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        text.append(message.get("body", b"").decode())
        if "".join(text).count("\ndata: ") >= count:
            enough.set()

    await app(scope_of(path, {"host": "localhost", **headers}), receive, send)
    blocks = [block for block in "".join(text).split("\n\n") if "data: " in block]
    return [_event(block) for block in blocks]


def _event(block: str) -> Event:
    fields = dict(line.split(": ", 1) for line in block.splitlines())
    return Event(fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None)


def test_it_begins_with_how_things_stand(followed, store):
    happen(store, 3)
    first = read(followed, 1)[0]
    assert (first.kind, first.document["read_to"], first.number) == ("standing", 3, None)


def test_a_browser_that_was_away_gets_what_it_missed_once_and_in_order(followed, store):
    happen(store, 9)
    events = read(followed, 5, {"Last-Event-ID": "5"})
    assert [each.number for each in events if each.kind == "happening"] == [6, 7, 8, 9]


def test_a_page_says_in_its_address_what_it_has_read(followed, store):
    happen(store, 4)
    events = read(followed, 3, path="/api/events?after=2")
    assert [each.number for each in events if each.kind == "happening"] == [3, 4]


def test_the_header_counts_more_than_the_address(followed, store):
    happen(store, 4)
    events = read(followed, 2, {"Last-Event-ID": "3"}, path="/api/events?after=1")
    assert [each.number for each in events if each.kind == "happening"] == [4]


def test_one_that_missed_very_many_is_told_to_read_again(followed, store):
    happen(store, 800)
    events = read(followed, 2, {"Last-Event-ID": "1"})
    assert [(each.kind, each.number) for each in events[1:]] == [("again", 800)]


@pytest.mark.parametrize("told", ["", "x", "-1", "1e3", "9" * 40, "٣"])
def test_nonsense_is_taken_for_nothing_seen(followed, store, told):
    happen(store, 2)
    assert [each.kind for each in read(followed, 1, {"Last-Event-ID": told.encode().decode("latin-1")})] == ["standing"]


def test_what_is_told_of_a_happening_is_no_more_than_what_where_and_when(followed, store):
    happen(store, 1)
    events = read(followed, 2, path="/api/events?after=0")
    assert set(events[1].document) == {"number", "kind", "at", "cohort"}


def test_there_are_no_more_streams_than_the_server_can_hold(followed, monkeypatch):
    monkeypatch.setattr(stream, "MOST_STREAMS", 0)
    reply = ask(followed, "/api/events")
    assert (reply.status, reply.headers["retry-after"]) == (503, "60")


def test_a_stream_counts_from_its_first_byte_on(followed, monkeypatch):
    """Many that begin in the same moment: none is let in on the ground that the others have not sent anything yet."""
    monkeypatch.setattr(stream, "MOST_STREAMS", 3)

    async def begun() -> list[int]:
        statuses: list[int] = []

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.5)
            return {"type": "http.disconnect"}

        await asyncio.gather(
            *(followed(scope_of("/api/events", {"host": "localhost"}), receive, send) for _ in range(10))
        )
        return statuses

    assert sorted(asyncio.run(begun())) == [200] * 3 + [503] * 7


def test_a_stream_that_ends_makes_room(followed, store, monkeypatch):
    monkeypatch.setattr(stream, "MOST_STREAMS", 1)
    for _ in range(3):
        assert read(followed, 1)


def test_data_cannot_break_out_of_their_line():
    text = stream.event("standing", {"name": "a\n\nevent: forged\ndata: 1"})
    assert text.count("\n\n") == 1
    assert text.count("event: ") == 2  # ours, and the one in quotes
    assert len(text.splitlines()) == 3
