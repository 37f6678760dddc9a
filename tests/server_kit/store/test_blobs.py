"""A blob is there with all its bytes or not at all, in a directory and behind a URL alike."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from server_kit.errors import InvalidSetting, StoreUnavailable
from server_kit.store.blobs import Blobs, LocalBlobs, RemoteBlobs, open_blobs


@pytest.fixture(params=["local", "remote"])
def blobs(request, tmp_path):
    return open_blobs(tmp_path / "blobs" if request.param == "local" else f"memory://{tmp_path}")


def failing():
    yield b"half of it"
    raise OSError(5, "Input/output error")


def test_bytes_pieces_and_files_come_back(blobs, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    blobs.put("models/a.safetensors", b"bytes")
    blobs.put("models/b", iter([b"pie", b"ces"]))
    blobs.put("c", source)
    assert [blobs.get(name) for name in ("models/a.safetensors", "models/b", "c")] == [
        b"bytes",
        b"pieces",
        b"from a file",
    ]
    with blobs.open("models/b") as file:
        assert file.read(3) == b"pie"
    assert not source.exists()


def test_names_are_listed_by_their_beginning_and_forgotten(blobs):
    for name in ("b/2", "a", "b/1", "bb"):
        blobs.put(name, b"")
    assert blobs.list() == ["a", "b/1", "b/2", "bb"]
    assert blobs.list("b/") == ["b/1", "b/2"]
    assert blobs.list("b") == ["b/1", "b/2", "bb"]
    assert blobs.list("nothing/") == []
    blobs.delete("b/1")
    blobs.delete("b/1")
    assert blobs.exists("b/2")
    assert not blobs.exists("b/1")


def test_what_is_not_there_is_a_missing_file(blobs):
    for look in (blobs.get, blobs.open):
        with pytest.raises(FileNotFoundError):
            look("nothing")


def test_an_upload_that_fails_leaves_no_name(blobs):
    with pytest.raises(StoreUnavailable):
        blobs.put("half", failing())
    assert blobs.list() == []
    assert not blobs.exists("half")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../../b", ".hidden", "a//b", "a/", "a b", "a\n"])
def test_no_name_leads_elsewhere(blobs, name):
    for deed in (blobs.get, blobs.delete, lambda name: blobs.put(name, b"")):
        with pytest.raises(InvalidSetting):
            deed(name)


def test_a_local_blob_has_a_path_and_a_remote_one_has_none(tmp_path):
    local: Blobs = LocalBlobs(tmp_path)
    remote: Blobs = RemoteBlobs(f"memory://{tmp_path}/paths")
    for blobs in (local, remote):
        blobs.put("a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert [blobs.path("a") for blobs in (local, remote)] == [tmp_path / "a", None]


def test_a_file_url_is_a_directory(tmp_path):
    open_blobs(f"file://{tmp_path}/there").put("a", b"content")
    assert Path(tmp_path / "there" / "a").read_bytes() == b"content"


def test_a_url_that_fsspec_does_not_know_is_refused():
    with pytest.raises(InvalidSetting, match="nothing was opened"):
        open_blobs("gopher://somewhere")


def test_drafts_of_killed_processes_are_dropped_once_they_are_old(tmp_path):
    blobs = LocalBlobs(tmp_path)
    blobs.put("updates/a", b"content")
    draft = tmp_path / "updates" / ".b.1234.new"
    draft.write_bytes(b"half")
    blobs.drop_drafts(older_than_seconds=600)
    assert draft.exists()
    os.utime(draft, (time.time() - 1000, time.time() - 1000))
    blobs.drop_drafts(older_than_seconds=600)
    assert not draft.exists()
    assert blobs.list() == ["updates/a"]


def test_a_blob_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    story = []
    blobs = LocalBlobs(tmp_path)
    rename = Path.rename

    def renaming(draft, target):
        story.append("renamed")
        return rename(draft, target)

    monkeypatch.setattr("server_kit.store.blobs.sync", lambda _: story.append("synced"))
    monkeypatch.setattr("server_kit.store.blobs.sync_directory", lambda _: story.append("directory synced"))
    monkeypatch.setattr(Path, "rename", renaming)
    blobs.put("a", b"content")
    assert story == ["synced", "renamed", "directory synced"]
