"""Processes that do the same at the same time: each thing is done once, by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from server_kit.errors import StoreUnavailable
from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
from server_kit.store.protocol import Asking, TaskState
from tests.server_kit.store.deliveries import cohort, content_of, task, update

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
KEYS = StoreKeys(bytes(32))
NAMES = [str(number) for number in range(30)]
RACERS = 3


@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


def race(url, blobs):
    """One racer: accept every update, unless another has; how many were this one's."""
    with closing(open_store(url, KEYS, blobs)) as store:
        return sum(store.accept([update(name, name, content=name.encode())], 150.0) == [True] for name in NAMES)


def test_each_update_is_accepted_by_one_process(url, tmp_path):
    with closing(open_store(url, KEYS, tmp_path / "blobs")) as store:
        store.ask(Asking([task(name) for name in NAMES], [cohort()]))
        command = [sys.executable, "-m", "tests.server_kit.store.test_store_races", url, str(tmp_path / "blobs")]
        racers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(RACERS)]
        won = [int(racer.communicate()[0]) for racer in racers]
        assert sum(won) == len(NAMES)
        arrived = store.tasks(None, TaskState.ARRIVED)
        assert [found.arrival for found in arrived] == list(range(1, len(NAMES) + 1))
        assert all(content_of(store, name) == name.encode() for name in NAMES)


def test_a_store_does_not_follow_into_a_forked_process(sqlite_url, tmp_path):
    with closing(open_store(sqlite_url, KEYS, tmp_path / "blobs")) as store:
        child = os.fork()
        if child == 0:
            try:
                store.happenings()
            except StoreUnavailable:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert store.happenings() == []


if __name__ == "__main__":
    os.write(1, str(race(sys.argv[1], sys.argv[2])).encode())
