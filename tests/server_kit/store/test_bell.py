"""A bell wakes its listener across processes; no ring is lost, and many are one."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from server_kit.errors import StoreUnavailable
from server_kit.store import bell as bell_module
from server_kit.store.bell import Bell, ring
from server_kit.store.postgres_bell import PostgresBell, PostgresRinger

ROOT = Path(__file__).parents[3]
LONG = 20.0
RING = """
import sys
from pathlib import Path
from server_kit.store.bell import ring
ring(Path(sys.argv[1]), "worker")
"""


@pytest.fixture
def local(tmp_path):
    with Bell(tmp_path, "worker") as bell:
        yield bell


@pytest.fixture(params=["local", "postgres"])
def pair(request, tmp_path):
    """A listener, and how to ring for it by name."""
    if request.param == "local":
        with Bell(tmp_path, "worker") as listener:
            yield listener, lambda name: ring(tmp_path, name)
        return
    url = request.getfixturevalue("postgres").url
    with closing(PostgresBell(url, "worker")) as far, closing(PostgresRinger(url)) as ringer:
        yield far, ringer.ring


def test_a_ring_before_the_look_is_heard_once(pair):
    listener, ring_for = pair
    ring_for("worker")
    assert listener.wait(LONG)
    assert not listener.wait(0.0)


def test_many_rings_are_heard_and_none_stops_the_ringer(local, tmp_path):
    for _ in range(2_000):
        ring(tmp_path, "worker")
    assert local.wait(LONG)
    assert not local.wait(0.0)
    ring(tmp_path, "worker")
    assert local.wait(LONG)


def test_a_ring_ends_the_waiting(pair):
    listener, ring_for = pair
    later = threading.Timer(0.2, ring_for, ["worker"])
    later.start()
    begun = time.monotonic()
    assert listener.wait(LONG)
    assert time.monotonic() - begun < LONG / 2
    later.join()


def test_the_bell_of_another_is_not_heard(pair, tmp_path):
    listener, ring_for = pair
    ring_for("coordinator")
    ring(tmp_path / "elsewhere", "worker")
    assert not listener.wait(0.05)


def test_nobody_listens_and_nothing_happens(tmp_path):
    ring(tmp_path, "nobody")


def test_a_dead_listener_is_replaced(tmp_path):
    dead = Bell(tmp_path, "worker")
    dead._socket.close()
    ring(tmp_path, "worker")
    with Bell(tmp_path, "worker") as living:
        ring(tmp_path, "worker")
        assert living.wait(LONG)


def test_closing_an_old_listener_leaves_the_new_one_its_bell(tmp_path):
    old, new = Bell(tmp_path, "worker"), Bell(tmp_path, "worker")
    old.close()
    ring(tmp_path, "worker")
    assert new.wait(LONG)
    new.close()


def test_another_process_is_heard(local, tmp_path):
    subprocess.run([sys.executable, "-c", RING, str(tmp_path)], cwd=ROOT, check=True)
    assert local.wait(LONG)


def test_a_path_of_any_length_has_a_bell(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 200)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with Bell(deep, "w" * 500) as bell:
        ring(deep, "w" * 500)
        assert bell.wait(LONG)


def test_a_directory_that_others_may_enter_is_refused(tmp_path):
    with Bell(tmp_path, "worker"):
        bell_module._folder(tmp_path).chmod(0o755)
        with pytest.raises(StoreUnavailable, match="this user alone"):
            Bell(tmp_path, "coordinator")


def test_no_ring_is_lost_between_two_looks(local, tmp_path):
    """The ringer puts down work, then rings; the listener never sleeps while there is work."""
    work: list[int] = []
    done = 0

    def put_down():
        for number in range(300):
            work.append(number)
            ring(tmp_path, "worker")

    ringer = threading.Thread(target=put_down)
    ringer.start()
    while done < 300:
        assert local.wait(LONG)
        done = len(work)
    ringer.join()


@pytest.mark.integration
def test_after_a_lost_connection_a_listener_is_woken_in_case_it_missed_something(postgres):
    listener = PostgresBell(postgres.url, "worker")
    with postgres.connect() as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    assert listener.wait(LONG)
    ringer = PostgresRinger(postgres.url)
    ringer.ring("worker")
    assert listener.wait(LONG)
    for one in (listener, ringer):
        one.close()
