"""The mark keeps the two newest notes, whoever writes them."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.vault.mark import Mark, Note

DEVICE = "00" * 16


@settings(max_examples=50, deadline=None)
@given(writers=st.lists(st.integers(0, 1), min_size=2, max_size=12))
def test_processes_that_note_in_turn_lose_no_newest_note(tmp_path_factory, writers):
    path = tmp_path_factory.mktemp("mark") / "vault.mark"
    Mark.create(path, Note(DEVICE, 0))
    with closing(Mark.open(path)) as one, closing(Mark.open(path)) as other:
        for generation, writer in enumerate(writers, start=1):
            (one, other)[writer].advance(Note(DEVICE, generation))
            assert one.read() == other.read() == Note(DEVICE, generation)
        (one, other)[writers[0]].advance(Note(DEVICE, 0))
        found = {note.generation for note in map(Note.from_slot, one._slots()) if note is not None}
    assert found == {len(writers), len(writers) - 1}


@pytest.mark.parametrize("damage", [b"\0" * 4096, b"garbage".ljust(4096, b"\0")])
def test_a_note_that_was_torn_since_it_was_written_is_the_first_to_be_replaced(tmp_path, damage):
    path = tmp_path / "vault.mark"
    Mark.create(path, Note(DEVICE, 0))
    with closing(Mark.open(path)) as mark:
        mark.advance(Note(DEVICE, 1))
        mark.advance(Note(DEVICE, 2))
        newest = mark._slots().index(Note(DEVICE, 2).slot())
        with path.open("r+b") as file:
            file.seek(newest * 4096)
            file.write(damage)
        mark.advance(Note(DEVICE, 3))
        assert {note and note.generation for note in map(Note.from_slot, mark._slots())} == {1, 3}
