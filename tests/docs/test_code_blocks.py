"""What the documentation shows works: Python blocks run, command lines fit the commands they call.

The Python blocks of a page share their names and run in order in an empty folder; a block tagged `python no-run` is
only shown, one tagged `python with-server` is run by `test_embedding_page.py`. In shell blocks the lines that start
with `covey` or `make` are checked. A TOML block that is a whole experiment is read as one, any other must be TOML.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import covey
from server_kit.errors import InvalidSetting
from server_kit.simulation.experiments import ExperimentFile
from tests.architecture.repository import ROOT, name_of
from tests.docs.command_tree import check_usage, words_of
from tests.docs.markdown import Fence, fences_of, markdown_files

NOT_HERE = {"no-run", "with-server"}
SHELLS = {"bash", "sh", "shell", "console"}


def run_python_blocks(page: str, text: str) -> int:
    """Run the blocks of a page; how many there were. A traceback shows the line in the page."""
    names = {"__name__": "__main__"}
    blocks = [fence for fence in fences_of(text) if fence.tags[:1] == ("python",) and not NOT_HERE & {*fence.tags}]
    for block in blocks:
        padded = "\n" * (block.line - 1) + block.code
        exec(compile(padded, page, "exec"), names)
    return len(blocks)


def shell_lines(fence: Fence) -> Iterator[str]:
    """The command lines of a shell block, continued lines joined, without a prompt."""
    for line in fence.code.replace("\\\n", " ").splitlines():
        yield line.strip().removeprefix("$ ")


def wrong_lines(text: str) -> list[str]:
    """The lines in the shell blocks of a page that could not be used as shown, and why."""
    faults = []
    for fence in fences_of(text):
        for line in shell_lines(fence) if fence.tags[:1] and fence.tags[0] in SHELLS else ():
            fault = fault_of(line)
            if fault:
                faults.append(f"{line}: {fault}")
    return faults


def fault_of(line: str) -> str | None:
    if line.startswith("covey "):
        try:
            check_usage(covey.covey, words_of(line))
        except click.UsageError as error:
            return error.format_message()
    if line.startswith("make "):
        unknown = set(make_goals(line)) - make_targets()
        return f"no such target: {unknown}" if unknown else None
    return None


def read_toml_blocks(text: str, folder: Path) -> int:
    """Read the blocks of a page; how many were experiments."""
    experiments = 0
    for fence in fences_of(text):
        if fence.tags[:1] == ("toml",) and {"population", "compare"} <= tomllib.loads(fence.code).keys():
            (folder / "shown.toml").write_text(fence.code, encoding="utf-8")
            ExperimentFile.open(folder / "shown.toml").read()
            experiments += 1
    return experiments


def make_goals(line: str) -> list[str]:
    return [word for word in shlex.split(line, comments=True)[1:] if "=" not in word and not word.startswith("-")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


@pytest.mark.parametrize("path", markdown_files(), ids=name_of)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python_blocks(name_of(path), path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", markdown_files(), ids=name_of)
def test_command_lines_fit_their_commands(path):
    assert wrong_lines(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", markdown_files(), ids=name_of)
def test_settings_that_are_shown_can_be_read(path, tmp_path):
    read_toml_blocks(path.read_text(encoding="utf-8"), tmp_path)


def test_an_experiment_with_a_setting_that_is_none_is_caught(tmp_path):
    whole = "[population]\ndevices = 3\npartition = 'iid'\n[model]\nkind = 'logistic'\n[training]\nlearning_rate = 1\n"
    page = "```toml\n" + whole + "[[compare]]\npreset = 'covey'\n```\n"
    assert read_toml_blocks(page, tmp_path) == 1
    with pytest.raises(InvalidSetting, match="devices"):
        read_toml_blocks(page.replace("devices", "devicez"), tmp_path)


def test_there_are_pages_to_look_at():
    assert {"README.md", "docs/commands.md"} <= {name_of(path) for path in markdown_files()}


def test_a_python_block_that_fails_is_caught_at_its_line():
    with pytest.raises(ZeroDivisionError) as caught:
        run_python_blocks("page.md", "# Title\n\n```python\none = 1\n```\n\n```python\none / 0\n```\n")
    assert caught.traceback[-1].lineno + 1 == 8


def test_only_blocks_meant_to_run_are_run():
    page = "```python no-run\nboom()\n```\n\n```\nboom()\n```\n\n```python\nfine = 1\n```\n"
    assert run_python_blocks("page.md", page) == 1


@pytest.mark.parametrize(
    "line", ["covey nonsense", "covey --nonsense", "covey --debug", "$ covey nonsense | head", "make x"]
)
def test_a_line_that_cannot_be_used_is_caught(line):
    assert len(wrong_lines(f"```bash\nls\n{line}\n```")) == 1


@pytest.mark.parametrize(
    "line", ["covey --help", "covey --version  # which one", "make test WORKERS=2", "ls --nonsense"]
)
def test_a_line_that_can_be_used_passes(line):
    assert wrong_lines(f"```bash\n{line}\n```") == []


@click.group(name="planted")
def planted():
    """Planted by the test."""


@planted.command()
@click.argument("state", type=click.Path(exists=True))
@click.option("--rounds", type=int, required=True)
@click.option("--unit", type=click.Choice(["record", "device"]))
def plan(state, rounds, unit):
    raise AssertionError("documentation is read, not run")


def test_a_fitting_line_passes_though_its_file_is_not_there():
    check_usage(planted, words_of("planted plan STATE --rounds 3 --unit device > out"))


@pytest.mark.parametrize(
    "line",
    [
        "planted",
        "planted plan --rounds 3",
        "planted plan STATE",
        "planted plan STATE --rounds many",
        "planted plan STATE --rounds 3 --unit planet",
        "planted plan STATE OTHER --rounds 3",
        "planted plan STATE --rounds",
    ],
)
def test_a_line_that_does_not_fit_is_caught(line):
    with pytest.raises(click.UsageError):
        check_usage(planted, words_of(line))
