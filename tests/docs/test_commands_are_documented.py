"""docs/commands.md and the commands say the same: names, options, exit codes, in both directions."""

from __future__ import annotations

import ast
import re

import click
import pytest

import covey
from covey import ExitCode
from tests.architecture.repository import PACKAGES, ROOT, name_of, package_sources
from tests.docs.command_tree import options_of, walk
from tests.docs.markdown import sections_of

PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")


def differences(root: click.Command, page: str) -> list[str]:
    """Where the page and the commands part. A command is described below a heading that is its full name."""
    described = {section.title: section.text for section in sections_of(page)}
    commands = dict(walk(root, "covey"))
    faults = [f"{title} is described but does not exist" for title in described if is_stale(title, commands)]
    for path, command in commands.items():
        if path not in described:
            faults.append(f"{path} has no heading")
        else:
            faults += [f"{path}: {fault}" for fault in differences_of_one(command, described[path])]
    return faults


def is_stale(title: str, commands: dict[str, click.Command]) -> bool:
    return title.partition(" ")[0] == "covey" and title not in commands


def differences_of_one(command: click.Command, text: str) -> list[str]:
    mentioned = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    real = options_of(command)
    faults = [f"{option} is not described" for option in real if option not in mentioned]
    every_command_has = {"--help", "--debug"}
    long = sorted(option for option in mentioned if option.startswith("--"))
    faults += [
        f"{option} is described but does not exist" for option in long if option not in {*real, *every_command_has}
    ]
    codes = exit_codes_in(command.help or "")
    return faults + [f"exit code {code} is in its help only" for code in codes if code not in exit_codes_in(text)]


def exit_codes_in(text: str) -> list[int]:
    """The codes that prose such as "Exits with 0 if ..., with 1 at ..." names."""
    sentences = re.findall(r"\b[Ee]xit(?:s|ed|\b)[^.]*(?:\.|$)", " ".join(text.split()))
    return [int(code) for sentence in sentences for code in re.findall(r"\b(?:with|code|exits?) `?(\d+)\b", sentence)]


def exit_codes_of_table(page: str) -> set[int]:
    return {int(code) for code in re.findall(r"^\| *`?(\d+)`? *\|", page, flags=re.MULTILINE)}


def exit_codes_in_source(source: str) -> list[int]:
    """The codes written out in calls of `exit`, `Exit` and `_exit`, and as an error's own `exit_code`."""
    parts: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"exit", "Exit", "_exit"}:
            parts += node.args
        elif isinstance(node, ast.Assign) and "exit_code" in [ast.unparse(target) for target in node.targets]:
            parts.append(node.value)
    return [part.value for part in parts if isinstance(part, ast.Constant) and type(part.value) is int]


def test_every_command_and_option_is_described_and_no_other():
    assert differences(covey.covey, PAGE) == []


def test_the_table_of_exit_codes_is_complete():
    assert exit_codes_of_table(PAGE) == set(ExitCode)


@pytest.mark.parametrize("path", [ROOT / "covey.py", *package_sources(*PACKAGES)], ids=name_of)
def test_no_source_ends_with_a_code_of_its_own(path):
    assert set(exit_codes_in_source(path.read_text(encoding="utf-8"))) <= set(ExitCode)


def test_every_command_has_one_brief_line_of_help():
    without = [path for path, command in walk(covey.covey, "covey") if not (command.help or "").strip()]
    assert without == []


@click.group()
def planted():
    """Planted by the test."""


@planted.command()
@click.option("-o", "--out", help="Where to.")
@click.option("--deep/--flat", help="How.")
def verify(out, deep):
    """Check it.

    Exits with 0 if it is intact, with 1 at the first fault.
    """


HONEST = """
# `covey`
# `covey verify`
`-o`, `--out`: where to. `--deep`, `--flat`: how. Exits with 0 (intact) or exits with 1. See `covey --help`.
"""


def test_an_honest_page_passes():
    assert differences(planted, HONEST) == []


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (
            HONEST.replace("# `covey verify`", "# `covey verify`\n# `covey repair`"),
            "covey repair is described but does not",
        ),
        (HONEST.replace("# `covey verify`", "# verify"), "covey verify has no heading"),
        (HONEST.replace("`--flat`", ""), "--flat is not described"),
        (HONEST.replace("`-o`", ""), "-o is not described"),
        (HONEST.replace("how.", "how. `--fast` too."), "--fast is described but does not exist"),
        (HONEST.replace("or exits with 1", ""), "exit code 1 is in its help only"),
    ],
)
def test_a_page_that_lies_or_forgets_is_caught(page, fault):
    assert any(fault in found for found in differences(planted, page))


@pytest.mark.parametrize(
    "source", ["ctx.exit(9)", "raise click.exceptions.Exit(9)", "sys.exit(9)", "class E:\n exit_code = 9"]
)
def test_an_undocumented_exit_code_is_caught(source):
    assert exit_codes_in_source(source) == [9]
