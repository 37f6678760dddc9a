"""The newest checkpoint that can be read is found, aloud if it is not the newest; what the store names stays."""

from __future__ import annotations

import logging
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from server_kit.checkpoints import OF_FEDERATION, Checkpoints, file_format, of_cohort, pack, unpack
from server_kit.errors import CheckpointNotWritten, CheckpointTooNew, CorruptCheckpoint, NoCheckpoint
from server_kit.store.blobs import Blobs, LocalBlobs, open_blobs

LINE = of_cohort("0.1")


@pytest.fixture(params=["directory", "url"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return open_blobs(tmp_path / "blobs" if request.param == "directory" else f"memory://{tmp_path}")


@pytest.fixture(params=["in memory", "aside"])
def checkpoints(blobs: Blobs, tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    return Checkpoints(blobs, tmp_path / "scratch", small_bytes=1 << 20 if request.param == "in memory" else 0)


def write(checkpoints: Checkpoints, number: int, line: str = LINE) -> str:
    return checkpoints.write(line, number, pack({"number": number, "model": torch.full((2000,), float(number))}))


def spoil(checkpoints: Checkpoints, name: str) -> None:
    """Flip a bit, as a disk does."""
    whole = bytearray(checkpoints.blobs.get(name))
    whole[-1] ^= 1
    checkpoints.blobs.delete(name)
    checkpoints.blobs.put(name, bytes(whole))


def test_a_checkpoint_is_found_again(checkpoints):
    names = [write(checkpoints, number) for number in (9, 10, 11)]
    found = checkpoints.latest(LINE)
    assert (found.name, found.number, found.fell_back) == (names[-1], 11, False)
    state = unpack(found.packed)
    assert state["number"] == 11
    assert torch.equal(state["model"], torch.full((2000,), 11.0))


def test_a_name_is_never_given_twice(checkpoints):
    assert len({write(checkpoints, 4) for _ in range(5)}) == 5


def test_a_checkpoint_that_the_store_does_not_name_is_not_looked_at(checkpoints):
    named, _ = write(checkpoints, 4), write(checkpoints, 5)
    assert checkpoints.latest(LINE, named).name == named


def test_lines_do_not_meet(checkpoints):
    for line in (of_cohort("0.1"), of_cohort("0.10"), of_cohort("0.1.0"), OF_FEDERATION):
        write(checkpoints, 3, line)
    assert len(checkpoints.blobs.list()) == 4
    assert checkpoints.prune(of_cohort("0.1"), (), keep=0) != []
    assert len(checkpoints.blobs.list()) == 3


def test_a_corrupt_newest_falls_back_to_the_one_before_aloud(checkpoints, caplog):
    before, newest = write(checkpoints, 4), write(checkpoints, 5)
    spoil(checkpoints, newest)
    with caplog.at_level(logging.WARNING):
        found = checkpoints.latest(LINE, newest)
    assert (found.name, found.number, found.unreadable, found.fell_back) == (before, 4, (newest,), True)
    assert [record.message for record in caplog.records] == [
        "checkpoint cannot be read",
        "fell back to an earlier checkpoint",
    ]
    assert vars(caplog.records[1])["checkpoint"] == before


def test_a_newest_that_is_gone_falls_back_too(checkpoints):
    before, newest = write(checkpoints, 4), write(checkpoints, 5)
    checkpoints.blobs.delete(newest)
    assert checkpoints.latest(LINE, newest).name == before


def test_swapped_files_are_neither_taken_for_the_other(checkpoints):
    before, one, other = (write(checkpoints, number) for number in (3, 4, 5))
    contents = [checkpoints.blobs.get(name) for name in (one, other)]
    for name, content in zip((other, one), contents, strict=True):
        checkpoints.blobs.delete(name)
        checkpoints.blobs.put(name, content)
    assert checkpoints.latest(LINE, other).name == before


def test_with_none_left_there_is_one_error(checkpoints):
    with pytest.raises(NoCheckpoint, match=r"0 that cannot.*nothing was started$"):
        checkpoints.latest(LINE)
    for number in (4, 5):
        spoil(checkpoints, write(checkpoints, number))
    with pytest.raises(NoCheckpoint, match=r"2 that cannot"):
        checkpoints.latest(LINE)


def test_one_that_was_asked_for_by_name_has_no_substitute(checkpoints):
    write(checkpoints, 4)
    newest = write(checkpoints, 5)
    spoil(checkpoints, newest)
    with pytest.raises(CorruptCheckpoint):
        checkpoints.read(newest)


def test_a_newer_version_of_covey_is_not_undone(checkpoints, monkeypatch):
    write(checkpoints, 4)
    with monkeypatch.context() as newer:
        newer.setattr(file_format, "FORMAT", "covey-checkpoint-2")
        write(checkpoints, 5)
    with pytest.raises(CheckpointTooNew):
        checkpoints.latest(LINE)


def test_a_name_that_is_none_is_refused(checkpoints):
    with pytest.raises(CorruptCheckpoint, match="not the name of a checkpoint"):
        checkpoints.latest(LINE, "../secrets")


def test_the_last_few_are_kept_and_whatever_the_store_names(checkpoints):
    names = [write(checkpoints, number) for number in range(1, 8)]
    twin = write(checkpoints, 7)
    named = {names[1], names[6]}
    assert checkpoints.prune(LINE, named) == [names[0], names[2], names[3]]
    assert set(checkpoints.blobs.list()) == {names[1], *names[4:], twin}
    assert checkpoints.prune(LINE, named) == []


def test_what_is_newer_than_the_store_knows_neither_goes_nor_counts(checkpoints):
    # A store from a backup goes on below the numbers of the files that it has forgotten.
    names = [write(checkpoints, number) for number in (1, 2, 3, 4, 5, 20, 21, 22)]
    assert (
        checkpoints.prune(LINE, {names[4], "checkpoints/cohort-0/000000000099-0123456789abcdef.safetensors"})
        == names[:2]
    )
    assert checkpoints.prune(LINE, (), keep=1) == names[2:-1]


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_checkpoint_is_private_and_its_draft_is_gone(tmp_path, small_bytes):
    checkpoints = Checkpoints(LocalBlobs(tmp_path / "blobs"), tmp_path / "scratch", small_bytes=small_bytes)
    path = checkpoints.blobs.path(write(checkpoints, 1))
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert drafts(tmp_path / "scratch") == []


def drafts(scratch: Path) -> list[str]:
    return [path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if path.is_file()]


def test_drafts_of_the_dead_do_not_pile_up_and_those_of_the_living_stay(blobs, tmp_path):
    checkpoints = Checkpoints(blobs, tmp_path / "scratch", small_bytes=0)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    half = {
        process: tmp_path / "scratch" / LINE / f"{process}-01234567" / ".half" for process in (dead.pid, os.getpid())
    }
    for path in half.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    write(checkpoints, 2)
    assert [path for path in half.values() if path.exists()] == [half[os.getpid()]]


@pytest.fixture
def little_room() -> Iterator[None]:
    """Files of this process end at 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_full_disk_costs_the_new_checkpoint_and_no_other(tmp_path, request, small_bytes):
    checkpoints = Checkpoints(LocalBlobs(tmp_path / "blobs"), tmp_path / "scratch", small_bytes=small_bytes)
    before = write(checkpoints, 1)
    request.getfixturevalue("little_room")
    with pytest.raises(CheckpointNotWritten, match=r"cohort-0\.1 .*those before it are untouched"):
        write(checkpoints, 2)
    assert drafts(tmp_path / "scratch") == []
    assert checkpoints.blobs.list() == [before]
    assert checkpoints.latest(LINE).name == before


def test_reading_from_afar_leaves_no_copy(tmp_path):
    checkpoints = Checkpoints(open_blobs(f"memory://{tmp_path}"), tmp_path / "scratch")
    assert unpack(checkpoints.read(write(checkpoints, 1)))["number"] == 1
    assert drafts(tmp_path / "scratch") == []
