"""The JSON of every command has the keys that docs/commands.md lists, and each command works where it says it works."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from covey import ExitCode
from tests.architecture.repository import ROOT
from tests.docs.markdown import sections_of
from tests.privacy.cli_helpers import Server, device, run

SECTIONS = {section.title: section.text for section in sections_of((ROOT / "docs/commands.md").read_text("utf-8"))}
FEW_TRIALS = ("--trials", 300)


def documented_keys(text: str) -> set[str]:
    """The code spans in the first column of the tables, but for options."""
    rows = re.findall(r"^\| (`[^|]*`) \|", text, flags=re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def words_for(command: str, tmp_path) -> tuple:
    if command in {"plan", "audit"}:
        return ("--epsilon", 4, "--delta", "1e-6", "--rounds", 3) if command == "plan" else FEW_TRIALS
    server = Server()
    state = device(tmp_path / "state", server=server)
    return (state, "--receipts", server.export(tmp_path / "receipts.jsonl")) if command == "report" else (state,)


@pytest.mark.parametrize("command", ["status", "verify", "explain", "plan", "report", "audit"])
def test_the_keys_of_the_documents_are_those_in_the_docs(tmp_path, capsys, command):
    document = run(capsys, command, *words_for(command, tmp_path), "--json").document
    assert set(document) == documented_keys(SECTIONS[f"covey privacy {command}"])
    assert document["format"] == f"covey-privacy-{command}-1"
    assert f"`{document['format']}`" in SECTIONS[f"covey privacy {command}"]


def inner_keys(value) -> set[str]:
    """The keys below the top level, as far as we chose them; those of a map by server are names."""
    if isinstance(value, dict):
        return set(value) | {key for part in value.values() for key in inner_keys(part)}
    return {key for part in value for key in inner_keys(part)} if isinstance(value, list) else set()


@pytest.mark.parametrize("command", ["status", "verify", "explain", "plan", "report", "audit"])
def test_the_keys_inside_are_named_in_the_docs_too(tmp_path, capsys, command):
    words = words_for(command, tmp_path)
    document = run(capsys, command, *words, *(["--recompute"] if command == "verify" else []), "--json").document
    named = set(re.findall(r"`(\w+)`", SECTIONS[f"covey privacy {command}"]))
    own = {"server", "mechanism", "purpose"}  # "its name"
    assert inner_keys(list(document.values())) - named - own == set()


def test_a_key_that_nobody_documented_is_caught():
    assert documented_keys("| `--json` | print |\n| `format`, `ledger` | which |\n") == {"format", "ledger"}


BLOCKED = """
    import sys
    for name in {blocked}:
        sys.modules[name] = None
    import covey
    sys.exit(covey.run(covey.covey, {words}))
"""
EXTRAS = ("dp_accounting", "matplotlib", "opacus", "pandas", "rich", "scipy", "sklearn", "torch")


def run_without(packages, *words):
    """The command in an interpreter where these packages cannot be imported."""
    program = "\n".join(
        line.strip() if "sys.modules" not in line else "    " + line.strip() for line in BLOCKED.splitlines()
    )
    program = program.format(blocked=packages, words=["privacy", *map(str, words)])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("command", ["status", "verify", "explain", "plan", "report"])
def test_a_device_needs_no_extra(tmp_path, command):
    told = run_without(EXTRAS, command, *words_for(command, tmp_path))
    assert (told.returncode, told.stderr) == (ExitCode.DONE, "")


def test_what_needs_an_extra_says_which_and_writes_nothing(tmp_path):
    state, page = device(tmp_path / "state"), tmp_path / "report.html"
    for words in (("report", state, "-o", page), ("verify", state, "--recompute"), ("audit", *FEW_TRIALS)):
        told = run_without(EXTRAS, *words)
        assert told.returncode == ExitCode.MISSING_EXTRA, told.stderr
        assert "pip install 'covey[audit]'" in told.stderr
    assert not page.exists()
