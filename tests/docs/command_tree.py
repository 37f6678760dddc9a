"""Walks the tree of commands as a person would meet it, and reads command lines without running them."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator, Sequence

import click

SHELL_TAKES_OVER = {"|", "||", "&&", ";", ">", ">>", "<", "&"}


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, the root first. Loads those that are loaded lazily."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{path} lists {name} but does not have it"
            yield from walk(child, f"{path} {name}")


def options_of(command: click.Command) -> list[str]:
    """Every spelling of every option, short and long."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return [spelling for option in options for spelling in (*option.opts, *option.secondary_opts)]


def words_of(line: str) -> list[str]:
    """The words of a shell line up to where the shell takes over; without the command's own name."""
    words = shlex.split(line, comments=True)
    end = next((place for place, word in enumerate(words) if word in SHELL_TAKES_OVER), len(words))
    return words[1:end]


def check_usage(command: click.Command, words: Sequence[str], parent: click.Context | None = None) -> None:
    """Raise `click.UsageError` where the words do not fit the command; files need not exist, nothing runs."""
    dry = without_effects(command)
    context = click.Context(dry, info_name=command.name, parent=parent)
    try:
        rest = click.Command.parse_args(dry, context, list(words))
    except click.exceptions.Exit:  # --help and --version answer at once
        return
    if isinstance(command, click.Group):
        if not rest:
            context.fail("the name of a command is missing")
        _, child, rest = command.resolve_command(context, rest)
        assert child is not None
        check_usage(child, rest, context)


def without_effects(command: click.Command) -> click.Command:
    """The same command whose files are mere words and whose options, but for --help and the like, do nothing."""
    dry = copy.copy(command)
    dry.params = [copy.copy(parameter) for parameter in command.params]
    for parameter in dry.params:
        if isinstance(parameter.type, click.Path | click.File):
            parameter.type = click.STRING
        if not parameter.is_eager:
            parameter.callback = None
    return dry
