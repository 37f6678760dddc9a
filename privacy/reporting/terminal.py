"""What a command shows while it works and when it is done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

Advance = Callable[[int, int], None]
"""Told how much is done of how much."""


@contextmanager
def progress(label: str) -> Iterator[Advance]:
    """A bar on standard error, if that is a terminal; nothing otherwise."""
    with click.progressbar(length=1, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def advance(done: int, total: int) -> None:
            bar.length = max(total, done, 1)
            bar.update(max(0, done - bar.pos))

        yield advance
        advance(bar.length or 1, bar.length or 1)


def show(as_json: bool, document: Callable[[], dict[str, Any]], text: Callable[[], str]) -> None:
    """Print a result on standard output, in one of its two forms."""
    # JSON in plain ASCII: names that servers chose cannot steer a terminal.
    click.echo(json.dumps(document(), indent=2, allow_nan=False) if as_json else text())
