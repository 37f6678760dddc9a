"""The `covey` command: finds the sub-command, and turns every failure into one sentence and an exit code.

Sub-commands stand in a table with the line that `covey --help` shows for them, and are imported only
when they are called: a device never loads server code, and help never loads anything.

Nothing but `--debug` prints a traceback. The exit codes are `ExitCode`; docs/commands.md explains them.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

PACKAGES = ("device_sdk", "privacy", "server_kit")

# Which extra brings a package that is not there; a test compares this with pyproject.toml.
EXTRA_OF_MODULE = {
    "torch": "torch",
    "opacus": "torch",
    "rich": "audit",
    "dp_accounting": "audit",
    "scipy": "audit",
    "matplotlib": "audit",
    "sklearn": "server",
    "sqlalchemy": "server",
    "alembic": "server",
    "pydantic": "server",
    "prometheus_client": "server",
    "starlette": "server",
    "uvicorn": "server",
    "psycopg": "postgres",
    "ray": "ray",
}


class ExitCode(IntEnum):
    """How `covey` ends. A script may rely on these."""

    DONE = 0
    FOUND_WRONG = 1
    USED_WRONGLY = 2
    MISSING_EXTRA = 3
    FAULT = 70
    INTERRUPTED = 130


@dataclass(frozen=True)
class LazyCommand:
    """Where a sub-command lives, as `module:attribute`, and its line in the help."""

    target: str
    help: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is a {type(command).__name__}, not a command")
        return command


class LazyGroup(click.Group):
    """A group that imports a sub-command when it is called, and not to list, describe or complete it."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.lazy[cmd_name].load() if cmd_name in self.lazy else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name].help) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self.lazy[name].help) for name in names]
        # Past `Group`, whose answer would import every sub-command.
        return commands + click.Command.shell_complete(self, ctx, incomplete)


@dataclass
class Session:
    """What the root options chose; filled in while the command line is read."""

    debug: bool = False


def keep_debug(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    # While parsing, because the sub-command is imported, and may fail, before the group's own function runs.
    ctx.ensure_object(Session).debug = wanted


def show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib import metadata

    try:
        version = metadata.version("covey")
    except metadata.PackageNotFoundError:
        version = "(not installed: run from its source)"
    click.echo(f"covey {version}")
    ctx.exit()


COMMANDS = {
    "demo": LazyCommand("server_kit.demo.cli:demo", "Show the whole system on this machine: server, devices, cohorts."),
    "device": LazyCommand("device_sdk.cli:device", "Enrol a device, let it take part, see where it stands, leave."),
    "privacy": LazyCommand("privacy.cli:privacy", "What was released, what it cost, and whether the record is intact."),
    "server": LazyCommand(
        "server_kit.cli:server", "Make a federation, run it, see how it does, let devices in and out."
    ),
    "simulate": LazyCommand("server_kit.simulation.cli:simulate", "Compare ways to train on simulated devices."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
@click.option("--debug", is_flag=True, expose_value=False, callback=keep_debug, help="Show the traceback of an error.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show version.")
def covey() -> None:
    """Federated learning in cohorts: devices keep their data; what leaves them is noised, booked and signed."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. `arguments` replaces `sys.argv[1:]`."""
    sys.exit(run(covey, arguments))


def run(group: click.Group, arguments: Sequence[str] | None = None) -> int:
    """Run `group` and return its exit code; failures have been told on stderr."""
    session = Session()
    try:
        outcome = group.main(arguments, prog_name="covey", standalone_mode=False, obj=session)
    except (Exception, KeyboardInterrupt) as error:
        if session.debug:
            traceback.print_exception(error)
        return tell(error)
    # Without its standalone mode click returns the code of `ctx.exit`, and None where a command just ends.
    return outcome if isinstance(outcome, int) else ExitCode.DONE


def tell(error: BaseException) -> int:
    """Say what went wrong in one sentence on stderr; return the exit code for it."""
    match error:
        case click.UsageError():
            error.show()
            return error.exit_code
        case KeyboardInterrupt() | click.Abort(__context__=KeyboardInterrupt()):
            return ExitCode.INTERRUPTED
        case click.Abort():
            return say("stopped without an answer to a question; nothing further was done", ExitCode.FOUND_WRONG)
        case click.ClickException():
            return say(error.format_message(), error.exit_code)
        case ImportError() if missing := missing_extra(error):
            return say(missing, ExitCode.MISSING_EXTRA)
        case OSError(strerror=str(reason)):
            return say(f"{error.filename}: {reason}" if error.filename else reason, ExitCode.FOUND_WRONG)
    if type(error).__module__.split(".")[0] in PACKAGES:
        return say(str(error), ExitCode.FOUND_WRONG)
    # Only the kind of error: the message of one we did not foresee may carry data.
    return say(f"stopped by a fault of its own ({type(error).__name__}); `covey --debug` shows where", ExitCode.FAULT)


def missing_extra(error: ImportError) -> str | None:
    """The sentence for a package that an extra would bring; None where something else is broken."""
    # By name, because every package has a MissingExtra of its own and none is imported here.
    if any(kind.__name__ == "MissingExtra" for kind in type(error).__mro__):
        return str(error)
    module = (error.name or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and module in EXTRA_OF_MODULE:
        return f"this needs {module}, which is not installed; run: pip install 'covey[{EXTRA_OF_MODULE[module]}]'"
    return None


def say(sentence: str, code: int) -> int:
    """Print one line for people; hand the code through."""
    click.echo(f"covey: {' '.join(sentence.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
