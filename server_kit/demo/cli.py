"""`covey demo`: a thin shell over `running`, and the words at its end."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from server_kit.demo.running import Demo, Folder
    from server_kit.demo.summary import Summary


@click.command()
@click.option("--devices", type=click.IntRange(6, 96), default=24, show_default=True, help="How many device processes.")
@click.option("--rounds", type=click.IntRange(8, 100), default=20, show_default=True, help="Rounds of each cohort.")
@click.option("--kinds", type=click.IntRange(2, 3), default=3, show_default=True, help="Kinds of data.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Where everything is left.",
)
def demo(devices: int, rounds: int, kinds: int, out: Path) -> None:
    """Show the whole system on this machine: server, devices, cohorts, report.

    Starts a real server and real device processes on loopback, with kinds of data that differ; takes about two minutes.
    Ctrl-C stops everything that it started.

    Exits with 0 if it came to its end, with 1 if it could not begin or go on, with 3 if a package is missing.
    """
    from server_kit.demo.requirements import check, prepare

    check(devices)
    prepare(out)

    from server_kit.demo.running import Demo, Folder
    from server_kit.demo.terms import Terms
    from server_kit.demo.watching import watching

    folder, terms = Folder(out), Terms(devices, rounds, kinds)
    click.echo(opening(terms.devices, terms.kinds))
    try:
        with watching(terms) as watch:
            summary = summarised(Demo(terms, folder, watch), folder)
    except KeyboardInterrupt:
        click.echo(f"stopped; nothing is left running; {out} holds what there was", err=True)
        raise
    click.echo(closing(summary, folder))


def summarised(run: Demo, folder: Folder) -> Summary:
    """Run it, and write down what it came to."""
    from server_kit.demo.report import page_of
    from server_kit.demo.summary import Summary

    summary = Summary(run.run())
    folder.report.write_text(page_of(summary), encoding="utf-8")
    folder.results.write_text(json.dumps(summary.document(), indent=1), encoding="utf-8")
    return summary


def opening(devices: int, kinds: int) -> str:
    """What is about to be shown."""
    from server_kit.demo.data import KINDS
    from server_kit.demo.terms import DELTA, EPSILON

    names = "\n".join(f"  - {kind.name}" for kind in KINDS[:kinds])
    return (
        f"{devices} devices hold images of digits, of {kinds} kinds; nobody is told which:\n{names}\n"
        f"A real server, with mTLS, looks for cohorts and trains a model for each. Every\n"
        f"record of every device is protected by ε={EPSILON} at δ={DELTA:g}, all rounds together.\n"
        "Accuracies are measured by the demo, which made the data; the server sees none.\n"
    )


def closing(summary: Summary, folder: Folder) -> str:
    """The table, where everything is, and what to try next; 80 columns at most where paths allow it."""
    lines = [
        f"{'right answers on test images':<27}{'cohort model':>15}{'one global model':>19}{'gain':>9}",
        *(
            f"{line.kind:<27}{line.cohort_model:>15.1%}{line.one_model:>19.1%}{100 * line.gain:>+9.1f}"
            for line in summary.by_kind()
        ),
        "",
        verdict(summary),
        "The one global model: FedAvg over all devices with the same records, start,",
        "mechanism, rounds and ε, computed beside the federation, without the wire. The",
        "data were made so that cohorts exist: this is a demonstration, not a benchmark.",
        "",
        f"report    {folder.report}",
        f"ledgers   {folder.devices}/*/",
        "",
        "Try next:",
        *(f"  {command}" for command in next_commands(folder)),
    ]
    return "\n".join(lines)


def verdict(summary: Summary) -> str:
    """How well the cohorts match the kinds, and what it cost."""
    from server_kit.demo.terms import EPSILON

    found = len(summary.results.last.leaves)
    return (
        f"Cohorts found: {found}; adjusted Rand index with the true kinds: {summary.agreement:.2f} (1 is best).\n"
        f"No device spent more than ε={summary.epsilon:.2f} of its {EPSILON}."
    )


def next_commands(folder: Folder) -> list[str]:
    """Three that work as they are printed, from where the demo was called."""
    covey, out = program(), shlex.quote(str(folder.path))
    return [
        f"{covey} privacy report {out}/devices/*/ -o {out}/privacy.html",
        f"{covey} server cohorts {out}/federation --all",
        f"{covey} privacy explain {out}/devices/device-00",
    ]


def program() -> str:
    """How `covey` is called here: by its name where that finds it, else by its path."""
    beside = Path(sys.executable).with_name("covey")
    found = shutil.which("covey")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "covey"
    if not beside.is_file():
        return f"{shlex.quote(sys.executable)} -m covey"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))
