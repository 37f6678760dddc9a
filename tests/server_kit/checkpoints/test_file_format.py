"""Whatever happens to a checkpoint's bytes is noticed before one of them is used."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from server_kit.checkpoints import (
    Packed,
    file_format,
    pack,
    unpack,
    unpack_cohort,
    unpack_federation,
    unpack_folded,
)
from server_kit.checkpoints.file_format import file_bytes, read_file, write_file
from server_kit.errors import CheckpointTooNew, CorruptCheckpoint, StoreUnavailable
from tests.server_kit.engine.worlds import same

NAME = "checkpoints/cohort-0/000000000007-0123456789abcdef.safetensors"
STATE: dict[str, Any] = {
    "model": torch.linspace(-1, 1, 4),
    "round": 7,
    "rows": [torch.ones(2, dtype=torch.float64), torch.zeros(0, 3), torch.tensor(True)],
}


@pytest.fixture(params=["to a file", "in memory"])
def written(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "checkpoint"
    if request.param == "in memory":
        path.write_bytes(file_bytes(pack(STATE), NAME))
    else:
        write_file(path, pack(STATE), NAME)
    return path


def test_what_was_written_is_read(written):
    assert same(unpack(read_file(written, NAME)), STATE)


@pytest.mark.parametrize("flip", [0x01, 0x20, 0xFF])
def test_every_byte_that_changes_is_noticed(written, flip):
    whole = written.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= flip
        written.write_bytes(changed)
        with pytest.raises(CorruptCheckpoint):
            read_file(written, NAME)


def test_a_reader_without_a_checksum_is_caught(written, monkeypatch):
    monkeypatch.setattr(file_format, "_check", lambda *_: None)
    whole, unnoticed = written.read_bytes(), 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        written.write_bytes(changed)
        try:
            read_file(written, NAME)
        except CorruptCheckpoint:
            continue
        unnoticed += 1
    assert unnoticed > 20


def test_a_file_that_was_cut_or_grew_is_noticed(written):
    whole = written.read_bytes()
    for length in range(len(whole)):
        written.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint):
            read_file(written, NAME)
    written.write_bytes(whole + b"\0")
    with pytest.raises(CorruptCheckpoint):
        read_file(written, NAME)


def test_a_checkpoint_under_another_name_is_not_taken_for_that_one(written):
    with pytest.raises(CorruptCheckpoint, match="another checkpoint"):
        read_file(written, NAME.replace("cohort-0", "cohort-1"))


def test_a_file_of_a_stranger_is_refused(tmp_path):
    save_file({"model": torch.zeros(3)}, tmp_path / "model", {"checksum": "0" * 64})
    with pytest.raises(CorruptCheckpoint):
        read_file(tmp_path / "model", NAME)


def test_a_newer_format_is_not_called_corrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(file_format, "FORMAT", "covey-checkpoint-2")
    write_file(tmp_path / "newer", pack(STATE), NAME)
    monkeypatch.undo()
    with pytest.raises(CheckpointTooNew, match="covey-checkpoint-2"):
        read_file(tmp_path / "newer", NAME)


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"model": {"$tensor": "/gone"}},
        {"model": {"$tensor": ["float32", 2, [9]]}},
        {"version": {"$float": "no"}},
        {"cohort": "0", "refusals": {}, "unheard": 1},
    ],
    ids=str,
)
def test_a_document_that_does_not_fit_is_no_state(tmp_path, document):
    write_file(tmp_path / "odd", Packed(document, pack(STATE).tensors), NAME)
    for unpacked in (unpack_cohort, unpack_folded, lambda packed: unpack_federation(packed, {})):
        with pytest.raises(CorruptCheckpoint, match=r"does not hold what it should"):
            unpacked(read_file(tmp_path / "odd", NAME))


def test_a_disk_that_fails_elsewhere_is_no_reason_to_give_a_checkpoint_up(written, monkeypatch):
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StoreUnavailable, match="Too many open files"):
        read_file(written, NAME)


def test_a_sector_that_cannot_be_read_is(written, monkeypatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_format, "_checksum", fail)
    with pytest.raises(CorruptCheckpoint):
        read_file(written, NAME)


def test_any_tool_for_safetensors_opens_it(written, tmp_path):
    write_file(tmp_path / "large", pack({"model": torch.arange(2000.0)}), NAME)
    tensors = load_file(tmp_path / "large")
    assert torch.equal(tensors["/model"], torch.arange(2000.0))
    assert json.loads(tensors["document"].numpy().tobytes()) == {"model": {"$tensor": "/model"}}


def test_a_state_without_tensors_is_a_checkpoint_too(tmp_path):
    write_file(tmp_path / "empty", Packed({}, {}), NAME)
    assert unpack(read_file(tmp_path / "empty", NAME)) == {}
