"""A worker that is killed while it writes leaves the checkpoint before or the new one, and nothing in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from server_kit.checkpoints import unpack
from tests.mortal import KILLED, Nursery
from tests.server_kit.checkpoints.lives import VALUES, newest, told

MODULE = "tests.server_kit.checkpoints.lives"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(MODULE) as nursery:
        yield nursery


def check(home: Path) -> None:
    found, last = newest(home), told(home)
    if found is None:
        assert last == 0
        return
    assert found.number in (last, last + 1)
    assert not found.fell_back
    state = unpack(found.packed)
    assert state["round"] == found.number
    assert torch.equal(state["model"], torch.full((VALUES,), float(found.number)))


def kill_at_lines(nursery: Nursery, home: Path, every: int, life: str) -> None:
    lines = nursery.live(life, fresh(home / "whole")).lines
    assert lines > 20
    for line in range(1, lines + 1, every):
        place = fresh(home / str(line))
        assert nursery.live(life, place, kill_at=line).code == KILLED
        check(place)
        assert nursery.live(life, place).code == 0
        check(place)


def fresh(home: Path) -> Path:
    home.mkdir()
    return home


@pytest.mark.parametrize("life", ["works", "works_in_memory"])
def test_a_kill_at_lines_that_make_files_durable_leaves_the_old_or_the_new(nursery, tmp_path, life):
    kill_at_lines(nursery, tmp_path, 11, life)


@pytest.mark.stress
@pytest.mark.parametrize("life", ["works", "works_in_memory"])
def test_a_kill_at_every_such_line(nursery, tmp_path, life):
    kill_at_lines(nursery, tmp_path, 1, life)


def random_kills(nursery: Nursery, home: Path, seed: int, kills: int) -> int:
    """How many checkpoints were written all the same."""
    chance, begin = np.random.default_rng(seed), time.perf_counter()
    assert nursery.live("works", home).code == 0
    whole_seconds = time.perf_counter() - begin
    for _ in range(kills):
        nursery.live("works", home, kill_after_seconds=float(chance.uniform(0.001, whole_seconds)))
        check(home)
    return told(home) - 3


@pytest.mark.integration
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(nursery, tmp_path):
    assert random_kills(nursery, tmp_path, 0, 15) > 0
    assert nursery.live("works", tmp_path).code == 0
    check(tmp_path)
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == []
    assert len(list((tmp_path / "blobs").rglob("*.safetensors"))) == 3


@pytest.mark.stress
def test_a_thousand_kills(nursery, tmp_path):
    assert random_kills(nursery, tmp_path, 1, 1000) > 100


def test_a_worker_that_writes_in_place_is_caught(nursery, tmp_path):
    lines = nursery.live("works_in_place", fresh(tmp_path / "whole")).lines

    def is_torn(line: int) -> bool:
        home = fresh(tmp_path / str(line))
        nursery.live("works_in_place", home, kill_at=line)
        found = newest(home)
        return found is not None and found.fell_back

    # The first line of the second checkpoint's sync is about half-way.
    assert any(map(is_torn, range(lines // 2, lines + 1)))
