"""A backup is a federation of one moment that can run, taken while others write; whole or not there."""

from __future__ import annotations

import json
import sqlite3
import stat
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from server_kit.commands.backing_up import _copy_database, _link_blobs, back_up
from server_kit.config import FILE_NAME
from server_kit.daemon.federation_home import Home
from server_kit.errors import HomeError, StoreError
from server_kit.store.protocol import Asking, FoldRecord
from tests.server_kit.store.deliveries import cohort, content_of, enrolled, name_of, task, update

LARGE = 300_000
"""Bytes of an update that does not fit into a row."""


def test_the_copy_runs_as_the_original_would(run, home, tmp_path):
    ran = run("server", "backup", home.directory, tmp_path / "copy")
    assert (ran.code, "1 blobs" in ran.out) == (0, True)
    for command in ("devices", "cohorts"):
        said = [run("server", command, place, "--json").out for place in (home.directory, tmp_path / "copy")]
        assert len(json.loads(said[0])[command]) == len(json.loads(said[1])[command])
    assert run("server", "export", tmp_path / "copy", "--cohort", "0.0", "-o", tmp_path / "model").code == 0
    assert Home.open(tmp_path / "copy").authority().fingerprint == home.authority().fingerprint


def test_nobody_else_can_read_it(home, tmp_path):
    back_up(home, tmp_path / "copy")
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "copy", *(tmp_path / "copy").rglob("*")]
    }
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}


def test_secrets_can_be_left_out(run, home, tmp_path):
    assert run("server", "backup", home.directory, tmp_path / "copy", "--without-secrets").code == 0
    assert not (tmp_path / "copy" / "secrets").exists()


def test_what_is_deleted_later_stays_in_the_copy(home, tmp_path):
    back_up(home, tmp_path / "copy")
    blobs = home.open_blobs()
    for name in blobs.list():
        blobs.delete(name)
    assert Home.open(tmp_path / "copy").open_blobs().list() != []


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_place_in_use_is_refused(run, home, tmp_path, kind):
    target = tmp_path / "copy"
    target.mkdir() if kind == "directory" else target.write_text("precious")
    ran = run("server", "backup", home.directory, target)
    assert (ran.code, "copy exists; name another place" in ran.err) == (1, True)


def test_what_fails_leaves_nothing_behind(home, tmp_path):
    (home.directory / "authority.pem").unlink()
    with pytest.raises(OSError, match="authority"):
        back_up(home, tmp_path / "backups" / "copy")
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_database_elsewhere_is_left_to_its_own_tools(home, tmp_path):
    (home.directory / FILE_NAME).write_text("[store]\nurl = 'postgresql+psycopg://covey@db/covey'\n")
    with pytest.raises(HomeError, match="pg_dump"):
        back_up(Home.open(home.directory), tmp_path / "copy")


def test_a_copy_taken_while_updates_come_and_go_names_no_blob_that_it_lacks(tmp_path):
    home = Home.create(tmp_path / "federation")
    there, ended, faults = threading.Event(), threading.Event(), []

    def arrive_and_go() -> None:
        """Large updates arrive, and each is scrubbed when the next is there."""
        store = home.open_store()
        try:
            for number in range(10_000):
                if ended.is_set():
                    return
                device, name = name_of(number), f"task-{number}"
                store.register.add(enrolled(device))
                store.ask(Asking([task(name, device)], [cohort()]))
                store.accept([update(device, name, content=number.to_bytes(4) * (LARGE // 4))], time.time())
                there.set()
                if number:
                    scrub(home, f"task-{number - 1}")
        except Exception as error:
            faults.append(error)
        finally:
            store.close()

    writer = threading.Thread(target=arrive_and_go)
    writer.start()
    try:
        assert there.wait(60)
        copies = [tmp_path / f"copy-{number}" for number in range(8)]
        for copy in copies:
            back_up(home, copy)
    finally:
        ended.set()
        writer.join()
    assert faults == []
    assert all(opened_updates(copy) > 0 for copy in copies)


def test_a_copy_made_without_holding_still_would_lack_one(tmp_path):
    home = Home.create(tmp_path / "federation")
    store = home.open_store()
    store.register.add(enrolled(name_of(0)))
    store.ask(Asking([task("task-0", name_of(0))], [cohort()]))
    store.accept([update(name_of(0), "task-0", content=bytes(LARGE))], time.time())
    store.close()
    copy = Home.create(tmp_path / "copy").directory
    for path in (copy / "covey.db", copy / "secrets" / "store.key"):
        path.unlink()
    with closing(sqlite3.connect(home.directory / "covey.db")) as source:
        _copy_database(source, copy / "covey.db")
    scrub(home, "task-0")
    _link_blobs(home, copy)
    (copy / "secrets" / "store.key").write_bytes(home.secrets.read("store.key"))
    (copy / "secrets" / "store.key").chmod(0o600)
    with pytest.raises((StoreError, FileNotFoundError)):
        opened_updates(copy)


def scrub(home: Home, name: str) -> None:
    """What a worker does once it has folded an update: forget it, then delete its blob."""
    store = home.open_store()
    try:
        lease = store.acquire("worker", name, 60, time.time())
        assert lease is not None
        record = store.cohorts()[0]
        folded = store.begin_fold(FoldRecord("0", int(name.partition("-")[2]), (name,), time.time()), [], lease)
        store.finish_fold(folded, lease, record)
        store.release(lease)
    finally:
        store.close()


def opened_updates(copy: Path) -> int:
    """How many updates wait in a copy; each must open."""
    store = Home.open(copy).open_store()
    try:
        waiting = [each.task for each in store.tasks() if each.state.value == "arrived"]
        return sum(len(content_of(store, name)) == LARGE for name in waiting)
    finally:
        store.close()
