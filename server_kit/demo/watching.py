"""What people see meanwhile: a table that is kept up to date on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from server_kit.dashboard.announcing import entrance
from server_kit.demo.progress import mean_for
from server_kit.demo.terms import EPSILON

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from server_kit.demo.measuring import OneModel
    from server_kit.demo.progress import Glance, Progress
    from server_kit.demo.running import Watch
    from server_kit.demo.terms import Terms

Row = tuple[str, int, int, str, str]
"""A cohort, its devices, its round, its accuracy and that of the one model, on the same devices."""
HEADS = ("cohort", "devices", "round", "its model", "one global model")


@contextmanager
def watching(terms: Terms) -> Iterator[Watch]:
    """Live where there is a terminal."""
    if not sys.stdout.isatty():
        yield Lines(terms)
        return
    from rich.live import Live

    with Live(auto_refresh=True, refresh_per_second=4, transient=True) as live:
        yield Table(terms, live)


class Lines:
    """One line for each step, and one for each round that all cohorts have done."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.began_at = time.monotonic()
        self._round, self._connected, self._changes = -1, 0, 0

    def doing(self, what: str) -> None:
        self._say(time.monotonic() - self.began_at, what)

    def seen(self, glance: Glance, progress: Progress, one_model: OneModel) -> None:
        if not self._connected and glance.connected:
            self._say(glance.seconds, f"dashboard, while this runs:\n      {_dashboard(progress)}")
        if glance.connected > self._connected:
            self._connected = glance.connected
            self._say(glance.seconds, f"{glance.connected} of {self._terms.devices} devices connected")
        for change in progress.changes[self._changes :]:
            self._say(glance.seconds, f"{change.kind} of cohort {change.cohort}: {change.facts.get('why', '')}")
        self._changes = len(progress.changes)
        if glance.round > self._round:
            if self._round < 0:
                click.echo("      ε spent; cohort: right answers with its model (with one global model)")
            self._round = glance.round
            told = "  ".join(f"{row[0]}: {row[3]} ({row[4]})" for row in rows(glance, progress, one_model))
            reached = min(glance.round, self._terms.rounds)
            self._say(glance.seconds, f"round {reached}/{self._terms.rounds}  ε {glance.epsilon:.1f}  {told}".rstrip())

    def _say(self, seconds: float, words: str) -> None:
        click.echo(f"{clock(seconds)}  {words}")


class Table:
    """Everything at once, on a terminal."""

    def __init__(self, terms: Terms, live: Live) -> None:
        self._terms, self._live = terms, live
        self.began_at = time.monotonic()

    def doing(self, what: str) -> None:
        from rich.spinner import Spinner

        self._live.update(Spinner("dots", text=f" {what} ..."))

    def seen(self, glance: Glance, progress: Progress, one_model: OneModel) -> None:
        self._live.update(self._drawn(glance, progress, one_model))

    def _drawn(self, glance: Glance, progress: Progress, one_model: OneModel) -> RenderableType:
        from rich.console import Group
        from rich.table import Table as Grid
        from rich.text import Text

        facts = Grid.grid(padding=(0, 2))
        facts.add_row("time", clock(glance.seconds))
        facts.add_row("devices", f"{glance.connected} of {self._terms.devices} connected, each a process of its own")
        facts.add_row("round", f"{min(glance.round, self._terms.rounds)} of {self._terms.rounds}")
        facts.add_row("privacy", f"ε {glance.epsilon:.2f} of {EPSILON} spent")
        facts.add_row("cohorts", _latest(progress))
        facts.add_row("dashboard", "while this runs:")
        table = Grid(*HEADS, header_style="bold", caption="right answers on test images of the cohort's own devices")
        for column in table.columns[1:]:
            column.justify = "right"
        for cohort, devices, number, own, one in rows(glance, progress, one_model):
            table.add_row(cohort, str(devices), str(number), Text(own, style="bold green"), one)
        if not table.rows:
            for cohort in glance.leaves:
                table.add_row(cohort, "", str(glance.rounds[cohort]), "begins", "")
        # On a line of its own, so that it is whole for a click in 80 columns.
        return Group(
            facts,
            Text(_dashboard(progress), style="underline"),
            "",
            table,
            Text("Ctrl-C stops everything", style="dim"),
        )


def rows(glance: Glance, progress: Progress, one_model: OneModel) -> list[Row]:
    """Each cohort that has a model, against the one model after as many rounds."""
    found = []
    for cohort in glance.leaves:
        point = progress.newest(cohort, len(one_model.rounds) - 1)
        if point is not None and point.members:
            one = mean_for(one_model.rounds[point.round], point.members)
            found.append((cohort, len(point.members), glance.rounds[cohort], f"{point.accuracy:.0%}", f"{one:.0%}"))
    return found


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _dashboard(progress: Progress) -> str:
    return entrance(progress.federation.home)


def _latest(progress: Progress) -> str:
    if not progress.changes:
        return "one so far; label mixes and devices' own choices decide"
    change = progress.changes[-1]
    return f"{change.kind} of cohort {change.cohort}: {change.facts.get('why', '')}"
