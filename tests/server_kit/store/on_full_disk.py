"""A server whose disk fills up and is given room again, run as a script: `KIND DIRECTORY`.

It exits with 0 if every failure was `StoreUnavailable`, a failed deed left nothing, and the same store goes on as
soon as there is room.
"""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from server_kit.errors import StoreUnavailable
from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from server_kit.store.protocol import Asking, FoldRecord, Happening, TaskState
from server_kit.store.sql_store import SqlStore
from tests.server_kit.store.deliveries import cohort, content_of, key_of, task, update

SMALL, LARGE = b"small" * 2_000, b"large" * 60_000


def fill(store: SqlStore, content: bytes, first: int) -> int:
    """Ask and accept until the disk says no; the number of the task that failed."""
    for number in range(first, first + 5_000):
        name = str(number)
        try:
            store.ask(Asking([task(name)], [cohort(size=number)]))
            check(store.accept([update(name, name, content=content)], 1.0) == [True], "accepted")
        except StoreUnavailable as error:
            check("nothing was changed" in str(error), "the error says what became of the data")
            return number
    raise SystemExit("the disk never failed")


def look(store: SqlStore, contents: dict[int, bytes]) -> None:
    """All that was accepted is there with its bytes, and nothing else is."""
    waiting = store.tasks(None, TaskState.ARRIVED)
    check([int(found.task) for found in waiting] == list(contents), "accepted updates wait, in order")
    check(len(list(store.receipts())) == len(contents), "one receipt each")
    for number, content in contents.items():
        check(content_of(store, str(number)) == content, "whole")


def full(directory: Path) -> None:
    """A file system with little room, until ballast is thrown out."""
    ballast = directory / "ballast"

    def narrow() -> None:
        ballast.write_bytes(bytes(shutil.disk_usage(directory).free - 800_000))

    story(directory, narrow, ballast.unlink)


def limited(directory: Path) -> None:
    """A limit on the size of files, which is raised later."""
    infinite = resource.RLIM_INFINITY
    story(
        directory,
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (280_000, infinite)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (infinite, infinite)),
    )


def story(directory: Path, narrow: Callable[[], object], widen: Callable[[], object]) -> None:
    store = open_store(f"sqlite:///{directory}/server.db", StoreKeys.generate(), directory / "blobs")
    contents: dict[int, bytes] = {}
    number = 0
    for content in (SMALL, LARGE):
        narrow()
        failed = fill(store, content, number)
        contents |= dict.fromkeys(range(number, failed), content)
        look(store, contents)
        widen()
        look(store, contents)
        number = failed + 1
        again = str(failed)
        if store.task(again) is None:
            store.ask(Asking([task(again)], []))
        check(store.accept([update(again, again, content=content)], 1.0) == [True], "goes on where it failed")
        contents[failed] = content
        look(store, contents)
    step_on_full_disk(store, contents, narrow, widen)


def step_on_full_disk(
    store: SqlStore, contents: dict[int, bytes], narrow: Callable[[], object], widen: Callable[[], object]
) -> None:
    """Folding a step either fails and leaves all updates, or succeeds and scrubs all."""
    lease = store.acquire("0", "worker", 1e9, 0.0)
    assert lease is not None
    begun = store.begin_fold(FoldRecord("0", 0, tuple(map(str, contents)), 0.0), [], lease)
    narrow()
    until_it_fails(store)
    try:
        store.finish_fold(begun, lease, cohort(version=1))
    except StoreUnavailable:
        look(store, contents)
        widen()
        store.finish_fold(begun, lease, cohort(version=1))
    else:
        widen()
    check(len(store.tasks(None, TaskState.FOLDED)) == len(contents), "all folded")
    check(store.last_receipt(key_of("0")) is not None, "receipts stay")
    store.sweep(older_than_seconds=-10.0)
    check(store._blobs.list() == [], "no bytes are left")


def until_it_fails(store: SqlStore) -> None:
    for _ in range(5_000):
        try:
            store.note(Happening("ballast", 0.0, facts={"x": "y" * 10_000}))
        except StoreUnavailable:
            return
    raise SystemExit("the disk never failed")


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"violated: {what}")


if __name__ == "__main__":
    {"full": full, "limited": limited}[sys.argv[1]](Path(sys.argv[2]))
