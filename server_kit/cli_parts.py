"""What the commands of `covey server` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
directory_argument = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


def json_option(command: Command) -> Command:
    """Print one JSON document instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)
