"""What a person sees while an experiment runs: bars on a terminal, a line for each finished unit elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from server_kit.simulation.experiments.experiment import Unit

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from server_kit.simulation.experiments.workers import Failure, Watcher
    from server_kit.simulation.records import Point

Share = Callable[["Point"], float]
"""How much of a run is done at a point of it."""


class Silent:
    """Says nothing."""

    def started(self, unit: Unit) -> None: ...

    def point(self, unit: Unit, point: Point) -> None: ...

    def finished(self, unit: Unit) -> None: ...

    def failed(self, failure: Failure) -> None: ...


class Lines(Silent):
    """One line on standard error for each unit that ends."""

    def __init__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._latest: dict[Unit, Point] = {}

    def point(self, unit: Unit, point: Point) -> None:
        self._latest[unit] = point

    def finished(self, unit: Unit) -> None:
        last = self._latest.pop(unit, None)
        reached = "" if last is None else f": {100 * last.progress.accuracy:.1f} % after {last.progress.round} rounds"
        self._say(f"{unit}{reached}")

    def failed(self, failure: Failure) -> None:
        self._say(f"{failure.unit} failed: {failure.sentence}")

    def _say(self, text: str) -> None:
        self._done += 1
        click.echo(f"[{self._done}/{self._total}] {text}", err=True)


class Display(Silent):
    """A bar for each running unit and one for all of them."""

    def __init__(self, bars: Bars, share: Share, done: int, total: int) -> None:
        self._bars, self._share = bars, share
        self._tasks: dict[Unit, TaskID] = {}
        self._all = bars.add_task("all units", total=total, completed=done, detail="")

    def started(self, unit: Unit) -> None:
        self._tasks[unit] = self._bars.add_task(str(unit), total=1.0, detail="")

    def point(self, unit: Unit, point: Point) -> None:
        detail = f"{100 * point.progress.accuracy:.1f} %, round {point.progress.round}"
        self._bars.update(self._tasks[unit], completed=self._share(point), detail=detail)

    def finished(self, unit: Unit) -> None:
        self._bars.remove_task(self._tasks.pop(unit))
        self._bars.advance(self._all)

    def failed(self, failure: Failure) -> None:
        self._bars.console.print(f"{failure.unit} failed: {failure.sentence}", markup=False, highlight=False)
        self.finished(failure.unit)


@contextmanager
def watching(share: Share, done: int, total: int, *, quiet: bool) -> Iterator[Watcher]:
    """The watcher that fits: none, bars, or lines where standard error is no terminal or rich is not installed."""
    if quiet:
        yield Silent()
        return
    bars = _bars() if sys.stderr.isatty() else None
    if bars is None:
        yield Lines(done, total)
        return
    with bars:
        yield Display(bars, share, done, total)


def _bars() -> Bars | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
