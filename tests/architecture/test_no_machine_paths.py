"""No file names a place that exists on one machine only, nor the package index that one machine uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, kept_files, name_of

# Written in pieces, so that this file passes its own test.
HOME_FOLDERS = ("/ho" + "me/", "/Use" + "rs/", "/r" + "oot/", "C:" + "\\Users\\")
PACKAGE_INDEX = (
    "(?i:" + "|".join(("index[-_]" + "url", "find[-_]" + "links", "://.*/sim" + "ple", "py" + "pi[.]org")) + ")"
)
# A clone in a folder such as /src has nobody's own name.
THIS_CLONE = [str(ROOT)] if len(ROOT.parts) > 2 else []
SUSPECT = re.compile("|".join([*map(re.escape, (*HOME_FOLDERS, *THIS_CLONE)), PACKAGE_INDEX]))


def machine_paths(text: str) -> list[str]:
    """The suspicious places in a text, each with its line."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"line {number}: {found.group()}" for number, line in lines for found in SUSPECT.finditer(line)]


def text_of(path: Path) -> str:
    """The file as text; of a picture or a model, nothing."""
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode("utf-8", errors="replace")


def test_no_file_names_a_place_on_one_machine():
    found = {name_of(path): machine_paths(text_of(path)) for path in kept_files()}
    assert {name: places for name, places in found.items() if places} == {}


def test_there_are_files_to_look_at():
    names = {name_of(path) for path in kept_files()}
    assert {"pyproject.toml", "Makefile", "README.md", "privacy/errors.py"} <= names
    assert not any(name.startswith((".git/", ".venv/")) for name in names)


@pytest.mark.parametrize(
    "line",
    [
        *(f"path = '{folder}ada/covey'" for folder in HOME_FOLDERS),
        *(f"see {place}/notes.txt" for place in THIS_CLONE),
        "pip install --index-" + "url somewhere covey",
        "PIP_EXTRA_INDEX_" + "URL=somewhere",
        "--find-" + "links wheels",
        "https://index.example/sim" + "ple/covey",
        "https://py" + "pi.org/project/covey",
    ],
)
def test_a_place_on_one_machine_is_caught(line):
    assert machine_paths(f"first\n{line}\n")


@pytest.mark.parametrize(
    "line",
    ["/etc/covey/server.toml", "~/.local/state", "homes/ada", "a simple index", "https://example.com/index.html"],
)
def test_a_place_of_every_machine_passes(line):
    assert machine_paths(line) == []
