"""A log that is made longer ahead of time holds what it held, and whoever reads it finds no more than was committed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from privacy.log_room import MOST_BYTES, STEP_BYTES, LogRoom


def opened(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def write(connection, room, number, size=5000):
    connection.execute("BEGIN IMMEDIATE")
    room.make()
    connection.execute("INSERT INTO kept VALUES (?, ?)", (number, bytes([number % 251]) * size))
    connection.execute("COMMIT")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.db"


@pytest.fixture
def log(path):
    return path.with_name("a.db-wal")


@pytest.fixture
def connection(path):
    with closing(opened(path)) as connection:
        connection.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, content BLOB)")
        yield connection


def test_most_commits_do_not_lengthen_the_log(connection, path, log):
    room, sizes = LogRoom(path), []
    for number in range(100):
        write(connection, room, number)
        sizes.append(log.stat().st_size)
    assert len(set(sizes)) <= 10
    assert sizes[-1] > 100 * 5000


def test_without_room_every_commit_does(connection, log):
    class NoRoom:
        def make(self):
            pass

    sizes = []
    for number in range(100):
        write(connection, NoRoom(), number)
        sizes.append(log.stat().st_size)
    assert len(set(sizes)) == 100


def test_a_copy_of_a_log_with_room_is_read_to_its_last_commit(connection, path, log, tmp_path):
    room = LogRoom(path)
    for number in range(30):
        write(connection, room, number)
        copy = tmp_path / f"copy-{number}"
        copy.mkdir()
        for file in (path, log):  # as a kill leaves them: without the index of the log
            shutil.copy(file, copy / file.name)
        with closing(opened(copy / path.name)) as other:
            assert other.execute("SELECT count(*) FROM kept").fetchone() == (number + 1,)
            assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            write(other, LogRoom(copy / path.name), number + 1)


def test_two_connections_take_turns_and_lose_nothing(connection, path):
    with closing(opened(path)) as other:
        both = [(connection, LogRoom(path)), (other, LogRoom(path))]
        for number in range(60):
            write(*both[number % 2], number)
    assert connection.execute("SELECT count(*) FROM kept").fetchone() == (60,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_log_is_not_lengthened_for_ever(connection, path, log):
    for number in range(40):
        write(connection, LogRoom(path), number)  # as if another process wrote each time
    assert log.stat().st_size <= MOST_BYTES + STEP_BYTES


def test_an_emptied_log_gets_room_again(connection, path, log):
    room = LogRoom(path)
    for number in range(3):
        write(connection, room, number)
    assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    for number in range(3, 6):
        write(connection, room, number)
    assert log.stat().st_size > STEP_BYTES


def test_a_disk_without_room_for_more_is_left_as_it_was(connection, path, log, monkeypatch):
    room = LogRoom(path)
    write(connection, room, 0)
    before = log.stat().st_size
    honest = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: honest(file, content[:4096], at))
    connection.execute("BEGIN IMMEDIATE")
    room.make()
    assert log.stat().st_size == before
    connection.execute("COMMIT")
    write(connection, room, 1)
    assert connection.execute("SELECT count(*) FROM kept").fetchone() == (2,)


def test_a_disk_that_refuses_to_write_is_no_failure(connection, path, monkeypatch):
    room = LogRoom(path)
    write(connection, room, 0)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    write(connection, room, 1)
    assert connection.execute("SELECT count(*) FROM kept").fetchone() == (2,)
