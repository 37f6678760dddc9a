"""`covey simulate`: a thin shell over `experiments.run_experiment`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from server_kit.simulation.experiments.workers import Failure


@click.command()
@click.argument("file", metavar="EXPERIMENT.toml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Where results go; by default EXPERIMENT-results."
)
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where data sets lie, in place of the file's own data_dir.",
)
@click.option("--seeds", type=click.IntRange(min=1), help="How many seeds, in place of the file's own number.")
@click.option("--jobs", type=click.IntRange(min=1), help="How many processes; by default one for each core.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--fresh", is_flag=True, help="Forget what was finished before and run everything.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def simulate(
    file: Path,
    *,
    out: Path | None,
    data_dir: Path | None,
    seeds: int | None,
    jobs: int | None,
    as_json: bool,
    fresh: bool,
    quiet: bool,
) -> None:
    """Compare ways to train on simulated devices: a table, JSON, plots.

    Finished runs are kept: the same command goes on where it was stopped. Exits with 0 if every run was finished,
    with 1 if one failed or OUT holds results of other settings, with 2 if the file is wrong, with 3 if a package is
    missing, with 130 if interrupted.
    """
    from privacy.reporting.terminal import show
    from server_kit.errors import InvalidSetting
    from server_kit.simulation.datasets import DatasetNotFound, InvalidDataset
    from server_kit.simulation.experiments import ExperimentFile, run_experiment

    out = out or Path(f"{file.stem}-results")
    try:
        experiment = ExperimentFile.open(file, seeds=seeds, data_dir=data_dir and data_dir.absolute())
        results = run_experiment(experiment, out, jobs=jobs, fresh=fresh, quiet=quiet)
    except (InvalidSetting, DatasetNotFound, InvalidDataset) as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        click.echo(f"stopped; what is finished is kept in {out}: the same command goes on from there", err=True)
        raise
    show(as_json, lambda: results.document, lambda: results.text)
    if not as_json:
        click.echo(f"\nresults.json, table.txt and plots are in {out}")
    if results.failures:
        raise _failed(results.failures, len(results.document["seeds"]) * len(results.document["contenders"]))


def _failed(failures: Sequence[Failure], units: int) -> click.ClickException:
    """One sentence about the first; `covey --debug` shows where each of them stopped."""
    first = failures[0]
    error = click.ClickException(
        f"{len(failures)} of {units} runs failed, first {first.unit}: {first.sentence}; the others are kept, and the "
        "same command tries these again"
    )
    error.__cause__ = RuntimeError("\n".join(f"{each.unit}: {each.details or each.sentence}" for each in failures))
    return error
