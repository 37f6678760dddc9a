"""A store on disk that tests fill, close, tamper with and open again."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from server_kit.store.protocol import Asking, Digest, FeedbackRecord
from tests.server_kit.store.deliveries import cohort, content_of, summary, task, update

KEYS = StoreKeys.generate()
CANARY = b"a canary that must not be seen"
LARGE = CANARY * 90_000
CONTENTS = [CANARY, CANARY + b"2", LARGE, LARGE + b"2"]


@dataclass
class Place:
    """Where a store lies, so that a test can open and tamper with it."""

    url: str
    blobs: Path
    path: str

    def open(self, keys=KEYS):
        return open_store(self.url, keys, self.blobs, clock=lambda: 1000.0)

    def tamper(self, statement, *values):
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute(statement, values)
        connection.close()

    def select(self, statement):
        connection = sqlite3.connect(self.path)
        rows = connection.execute(statement).fetchall()
        connection.close()
        return rows

    def files(self):
        return [path for path in self.blobs.parent.rglob("*") if path.is_file()]


def fill(place: Place) -> None:
    """Put two rows in each sealed column."""
    store = place.open()
    names = ("a", "b", "c", "d")
    store.ask(Asking([task(name) for name in names], [cohort()]))
    store.accept([update(name, name, content=content) for name, content in zip(names, CONTENTS, strict=True)], 150.0)
    for device in ("e", "f"):
        store.accept([summary(device, content=CANARY)], 150.0)
    views = {device: {"seen": CANARY.decode()} for device in ("a", "b")}
    store.digest(Digest(None, "1", views=views, feedback=[FeedbackRecord("a", CANARY), FeedbackRecord("b", CANARY)]))
    store.close()


def read_all(store):
    """Open every sealed value; what it holds."""
    return (
        [one.to_json() for one in store.receipts()],
        [content_of(store, name) for name in ("a", "b", "c", "d")],
        [one.payload for one in store.summaries("label_histogram")],
        dict(store.views()),
        store.feedback(["a", "b"]),
    )
