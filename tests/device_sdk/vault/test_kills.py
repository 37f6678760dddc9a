"""Killed at any line, a vault is as it was before or as it will be after, opens, and leaves no key behind."""

from __future__ import annotations

import shutil

import pytest

from device_sdk.errors import KeyUnavailable
from tests.device_sdk.vault import lives
from tests.device_sdk.vault.lives import CONTENTS, SERVER
from tests.mortal import KILLED, Nursery

pytestmark = pytest.mark.integration
NOTHING = dict.fromkeys(CONTENTS)
SHREDDED = {place: None if place[0] == SERVER else content for place, content in CONTENTS.items()}
STORIES: dict[str, tuple[str | None, list[dict]]] = {
    # what is done, from which state, what may be found after a kill
    "create": (None, [NOTHING]),
    "fill": ("create", [NOTHING, CONTENTS]),
    "rotate": ("fill", [CONTENTS]),
    "shred": ("fill", [CONTENTS, SHREDDED]),
}


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.device_sdk.vault.lives") as nursery:
        yield nursery


def prepared(nursery, home, before):
    home.mkdir()
    for function in () if before is None else ("create",) if before == "create" else ("create", "fill"):
        assert nursery.live(function, home).code == 0


def tell(nursery, tmp_path, story, stride, first=1):
    """Kill the story at every `stride`-th line, each time from the same beginning; yields what was left."""
    before, allowed = STORIES[story]
    origin = tmp_path / "origin"
    prepared(nursery, origin, before)
    shutil.copytree(origin, tmp_path / "whole")
    whole = nursery.live(story, tmp_path / "whole")
    assert whole.code == 0
    assert lives.found(tmp_path / "whole") == allowed[-1]
    for line in range(first, whole.lines, stride):
        home = tmp_path / "killed"
        shutil.copytree(origin, home)
        assert nursery.live(story, home, kill_at=line).code == KILLED
        yield home, allowed, line
        shutil.rmtree(home)


def check(nursery, home, story, allowed, line):
    assert lives.found(home) in allowed, line
    # Opening has tidied up: exactly the key in use is kept.
    assert len((home / "device.key").read_text().splitlines()) == 1, line
    assert nursery.live(story, home).code == 0, line
    assert lives.found(home) == allowed[-1], line


@pytest.mark.parametrize("story", STORIES)
def test_killed_at_any_of_many_lines_the_vault_is_whole(nursery, tmp_path, story):
    for home, allowed, line in tell(nursery, tmp_path, story, stride=47, first=7):
        check(nursery, home, story, allowed, line)


@pytest.mark.stress
@pytest.mark.parametrize("story", STORIES)
def test_killed_at_every_line_the_vault_is_whole(nursery, tmp_path, story):
    for home, allowed, line in tell(nursery, tmp_path, story, stride=1):
        check(nursery, home, story, allowed, line)


def test_a_full_disk_is_said_and_loses_nothing(nursery, tmp_path):
    prepared(nursery, tmp_path / "home", "fill")
    assert nursery.live("fill_the_disk", tmp_path / "home").code == 0
    assert lives.found(tmp_path / "home") == CONTENTS


def test_the_kills_catch_a_rotation_that_discards_the_old_key_first(nursery, tmp_path):
    STORIES["rotate_carelessly"] = STORIES["rotate"]
    try:
        for home, _, _ in tell(nursery, tmp_path, "rotate_carelessly", stride=29):
            try:
                lives.found(home)
            except KeyUnavailable:
                return
    finally:
        del STORIES["rotate_carelessly"]
    pytest.fail("no kill showed that the key was discarded too early")
