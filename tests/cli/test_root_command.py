"""The root command: sub-commands load when called, and every failure is one sentence and a documented code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

import covey
from covey import ExitCode, LazyCommand, LazyGroup
from tests.architecture.repository import ROOT
from tests.heard import heard

PLANTED = """
    import click
    import planted_errors

    @click.group()
    def planted(): ...

    @planted.command()
    @click.option("--code", default=0)
    @click.pass_context
    def ends(ctx, code):
        ctx.exit(code)

    @planted.command()
    def done(): ...

    @planted.command()
    @click.argument("name")
    def fails(name):
        raise eval(name)
"""
PLANTED_ERRORS = """
    class OursError(Exception): ...
    class MissingExtra(OursError, ImportError): ...
    OursError.__module__ = MissingExtra.__module__ = "device_sdk.errors"
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A root command whose sub-commands lie in modules of their own, not yet imported."""
    forget_planted_modules()  # other tests plant modules too, and may have left theirs
    (tmp_path / "planted_cli.py").write_text(textwrap.dedent(PLANTED))
    (tmp_path / "planted_errors.py").write_text(textwrap.dedent(PLANTED_ERRORS))
    (tmp_path / "planted_without_torch.py").write_text("import torch_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(covey.EXTRA_OF_MODULE, "torch_that_is_missing", "torch")
    yield LazyGroup(
        name="covey",
        params=covey.covey.params,
        lazy={
            "planted": LazyCommand("planted_cli:planted", "Planted by the test."),
            "heavy": LazyCommand("planted_without_torch:heavy", "Needs an extra."),
            "broken": LazyCommand("planted_is_nowhere:broken", "Is not there."),
            "odd": LazyCommand("planted_errors:OursError", "Is not a command."),
        },
    )
    forget_planted_modules()


class EagerGroup(LazyGroup):
    format_commands = click.Group.format_commands


def planted_modules() -> list[str]:
    return [name for name in sys.modules if name.startswith("planted_")]


def forget_planted_modules() -> None:
    for name in planted_modules():
        del sys.modules[name]


def run_covey(*arguments, program=(sys.executable, "covey.py")):
    return subprocess.run([*program, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_help_names_every_command_and_imports_none(planted, capsys):
    assert covey.run(planted, ["--help"]) == ExitCode.DONE
    told = capsys.readouterr().out
    assert all(name in told and command.help in told for name, command in planted.lazy.items())
    assert planted_modules() == []


def test_completion_names_commands_and_imports_none(planted):
    completion = ShellComplete(planted, {}, "covey", "_COVEY_COMPLETE")
    assert [item.value for item in completion.get_completions([], "pl")] == ["planted"]
    assert "--debug" in [item.value for item in completion.get_completions([], "--")]
    assert planted_modules() == []


def test_calling_a_command_imports_that_one_alone(planted):
    assert covey.run(planted, ["planted", "done"]) == ExitCode.DONE
    assert sorted(planted_modules()) == ["planted_cli", "planted_errors"]


def test_a_group_that_imports_to_show_help_is_caught(planted, capsys):
    eager = EagerGroup(name="covey", lazy={"planted": planted.lazy["planted"]})
    covey.run(eager, ["--help"])
    assert planted_modules() != []


@pytest.mark.parametrize("code", [0, 1, 4])
def test_the_code_a_command_chooses_is_kept(planted, code):
    assert covey.run(planted, ["planted", "ends", "--code", str(code)]) == code


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        ("planted_errors.OursError('the ledger\\nis gone')", ExitCode.FOUND_WRONG, "covey: the ledger is gone\n"),
        ("click.ClickException('two entries differ')", ExitCode.FOUND_WRONG, "covey: two entries differ\n"),
        (
            "PermissionError(13, 'Permission denied', 'state')",
            ExitCode.FOUND_WRONG,
            "covey: state: Permission denied\n",
        ),
        (
            "planted_errors.MissingExtra(\"run: pip install 'covey[audit]'\")",
            ExitCode.MISSING_EXTRA,
            "covey: run: pip install 'covey[audit]'\n",
        ),
        (
            "EOFError()",
            ExitCode.FOUND_WRONG,
            "\ncovey: stopped without an answer to a question; nothing further was done\n",
        ),
        ("KeyboardInterrupt()", ExitCode.INTERRUPTED, "\n"),
    ],
)
def test_a_failure_is_one_sentence_and_a_code(planted, capsys, error, code, sentence):
    assert covey.run(planted, ["planted", "fails", error]) == code
    assert capsys.readouterr() == ("", sentence)


@pytest.mark.parametrize("error", ["ValueError('label 7 of patient 12')", "ImportError('no such thing')"])
def test_an_unforeseen_error_is_a_fault_and_keeps_its_data_to_itself(planted, capsys, error):
    assert covey.run(planted, ["planted", "fails", error]) == ExitCode.FAULT
    told = capsys.readouterr().err
    assert error.split("(")[0] in told
    assert told.count("\n") == 1
    assert "patient" not in told


def test_a_missing_package_names_the_command_that_brings_it(planted, capsys):
    assert covey.run(planted, ["heavy"]) == ExitCode.MISSING_EXTRA
    assert "pip install 'covey[torch]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["broken", "odd"])
def test_a_wrong_entry_of_the_table_is_a_fault_not_a_missing_extra(planted, command):
    assert covey.run(planted, [command]) == ExitCode.FAULT


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--nonsense"], ["planted", "ends", "--code", "x"]])
def test_wrong_use_is_told_with_the_usage(planted, capsys, arguments):
    assert covey.run(planted, arguments) == ExitCode.USED_WRONGLY
    assert "Usage: covey" in capsys.readouterr().err


def test_only_debug_shows_a_traceback(planted, capsys):
    failing = ["planted", "fails", "planted_errors.OursError('gone')"]
    covey.run(planted, failing)
    assert "Traceback" not in capsys.readouterr().err
    assert covey.run(planted, ["--debug", *failing]) == ExitCode.FOUND_WRONG
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith("covey: gone\n")


def test_debug_shows_why_a_command_could_not_be_loaded(planted, capsys):
    covey.run(planted, ["--debug", "broken"])
    assert "No module named 'planted_is_nowhere'" in capsys.readouterr().err


def test_the_installed_command_and_the_file_are_the_same():
    installed = Path(sys.executable).parent / "covey"
    told = [run_covey("--help"), run_covey("--help", program=(installed,))]
    assert told[0].returncode == told[1].returncode == ExitCode.DONE
    assert told[0].stdout == told[1].stdout


def test_the_version_is_told():
    assert run_covey("--version").stdout.startswith("covey 0.")


def test_a_reader_that_went_away_causes_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    finished = subprocess.run([sys.executable, "covey.py", "--help"], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert finished.stderr == b""


WAITING = """
    import time
    import click, covey

    @click.command()
    def wait():
        click.echo("waiting")
        time.sleep(60)

    if __name__ == "__main__":
        covey.COMMANDS["wait"] = covey.LazyCommand("planted_wait:wait", "Wait.")
        covey.main(["wait"])
"""


@pytest.mark.integration
def test_an_interrupt_ends_quietly(tmp_path):
    program = tmp_path / "planted_wait.py"
    program.write_text(textwrap.dedent(WAITING))
    with heard(signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-u", program],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert told.strip() == ""
