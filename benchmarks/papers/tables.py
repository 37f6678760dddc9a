"""Tables for benchmarks/README.md from the results of the experiments, as far as they are.

    python -m benchmarks.papers.tables OUT --data-dir DATA                              print them
    python -m benchmarks.papers.tables OUT --data-dir DATA --into benchmarks/README.md  replace those in a file

OUT holds a results folder for each experiment, called as its file. Only seeds count that all contenders have finished.
In a file a table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.papers.expected import CLAIMS, PUBLISHED, SIDE_BY_SIDE, Claim
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.results_folder import Finished, ResultsFolder
from server_kit.simulation.experiments.summary import (
    ContenderSummary,
    Difference,
    Estimate,
    Reached,
    final_of,
    paired,
    summarise,
)
from server_kit.simulation.metrics import first_reaching
from server_kit.simulation.records import Run

HERE = Path(__file__).parent
NOTHING = "–"
NOT_YET = "No seed is finished yet.\n"
Runs = Mapping[str, Mapping[int, Run]]


def tables_of(experiment: Experiment, finished: Mapping[Unit, Finished]) -> str:
    """What an experiment came to: its contenders, then the claims, with the seeds and commits."""
    name = Path(experiment.file.name).stem
    if not finished:
        return NOT_YET
    seeds = sorted({unit.seed for unit in finished})
    commits = sorted({_short(each.commit) for each in finished.values()})
    parts = [
        f"`{name}.toml`, seeds {seeds[0]} to {seeds[-1]}, commit {', '.join(commits)}.",
        _contenders(name, summarise(experiment, finished)),
    ]
    if CLAIMS.get(name):
        parts.append(_claims(CLAIMS[name], _runs(finished)))
    return "\n\n".join(parts) + "\n"


def _short(commit: str | None) -> str:
    """With the + of a checkout that had changes."""
    return "unknown" if commit is None else commit[:7] + "+" * commit.endswith("+")


def complete(experiment: Experiment, finished: Mapping[Unit, Finished]) -> dict[Unit, Finished]:
    """Pairs are only fair among seeds that everyone has run."""
    names = [contender.name for contender in experiment.contenders]
    seeds = {unit.seed for unit in finished}
    whole = {seed for seed in seeds if all(Unit(name, seed) in finished for name in names)}
    return {unit: each for unit, each in finished.items() if unit.seed in whole}


def _runs(finished: Mapping[Unit, Finished]) -> Runs:
    runs: dict[str, dict[int, Run]] = {}
    for unit, each in finished.items():
        runs.setdefault(unit.contender, {})[unit.seed] = each.run
    return runs


def _contenders(name: str, summaries: tuple[ContenderSummary, ...]) -> str:
    columns: list[tuple[str, list[str]]] = [
        ("accuracy", [_percent(each.final) for each in summaries]),
        ("worst 10 %", [_percent(each.worst_tenth) for each in summaries]),
    ]
    if name in PUBLISHED or name == "equal_epsilon_device":
        columns.append(("best over rounds", [_percent(each.best) for each in summaries]))
    if name in PUBLISHED:
        columns.append(("published", [PUBLISHED[name].get(each.name, NOTHING) for each in summaries]))
    if targets := summaries[0].targets:
        middle = len(targets) // 2
        times = [_time(each.targets[middle]) for each in summaries]
        columns.append((f"time to {100 * targets[middle].target:g} %", times))
    if any(each.agreement and each.agreement.mean for each in summaries):
        columns.append(
            ("ARI", [NOTHING if each.agreement is None else f"{each.agreement.mean:.2f}" for each in summaries])
        )
    columns.append(("cohorts", [NOTHING if each.cohorts is None else f"{each.cohorts.mean:.1f}" for each in summaries]))
    if any(each.epsilon for each in summaries):
        columns.append(("ε spent", [NOTHING if each.epsilon is None else f"{each.epsilon:.2f}" for each in summaries]))
    rows = [[each.name, *(cells[row] for _, cells in columns)] for row, each in enumerate(summaries)]
    return _markdown(["", *(header for header, _ in columns)], rows)


def _claims(claims: list[Claim], runs: Runs) -> str:
    rows = [[_said(claim), *_shown(claim, runs)] for claim in claims if {claim.better, claim.other} <= runs.keys()]
    return _markdown(["on the same seeds", "difference", "95 % interval", "better on"], rows)


def _said(claim: Claim) -> str:
    if claim.target is None:
        return f"accuracy, {claim.better} against {claim.other}"
    return f"time to {100 * claim.target:g} %, {claim.better} against {claim.other}"


def _shown(claim: Claim, runs: Runs) -> list[str]:
    if claim.target is None:
        found = paired(
            *({seed: final_of(run) for seed, run in runs[who].items()} for who in (claim.other, claim.better))
        )
        return [NOTHING] * 3 if found is None else _difference(found)
    better, other = (_log_times(runs[who], claim.target) for who in (claim.better, claim.other))
    found = paired(other, better)
    return ["one of them never gets there", NOTHING, NOTHING] if found is None else _ratio(found)


def _log_times(runs: Mapping[int, Run], target: float) -> dict[int, float]:
    there = {seed: first_reaching(run.curve, target) for seed, run in runs.items()}
    return {seed: math.log(point.seconds) for seed, point in there.items() if point is not None}


def _difference(found: Difference) -> list[str]:
    return [f"{100 * found.mean:+.1f} points", _interval(found, 100, ""), f"{found.better} of {found.pairs}"]


def _ratio(found: Difference) -> list[str]:
    """Logarithms of times as per cent more or less."""
    change = Difference(
        math.expm1(found.mean),
        None if found.low is None else math.expm1(found.low),
        None if found.high is None else math.expm1(found.high),
        found.pairs,
        found.better,
    )
    sooner = found.pairs - found.better
    return [f"{100 * change.mean:+.0f} %", _interval(change, 100, " %", "+.0f"), f"{sooner} of {found.pairs}"]


def _interval(found: Difference, scale: float, unit: str, shape: str = "+.1f") -> str:
    if found.low is None or found.high is None:
        return "needs 2 seeds"
    return f"{scale * found.low:{shape}} to {scale * found.high:{shape}}{unit}"


def _percent(found: Estimate | None) -> str:
    """With the standard deviation over seeds."""
    if found is None:
        return NOTHING
    if found.standard_error is None:
        return f"{100 * found.mean:.1f}"
    return f"{100 * found.mean:.1f} ± {100 * found.standard_error * math.sqrt(found.seeds):.1f}"


def _time(found: Reached) -> str:
    if found.virtual_seconds is None:
        return NOTHING
    missing = "" if found.reached == found.seeds else f" ({found.reached} of {found.seeds})"
    return f"{found.virtual_seconds.mean:.0f} s{missing}"


def _markdown(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---", *["--:"] * (len(headers) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def side_by_side(found: Mapping[str, tuple[Experiment, Mapping[Unit, Finished]]]) -> str:
    """Accuracies in several experiments, and the time to their middle target where they have one."""
    heads, columns, names = [], [], dict[str, None]()
    for name, (experiment, finished) in found.items():
        summaries = {each.name: each for each in summarise(experiment, finished)}
        names |= dict.fromkeys(summaries)
        heads.append(f"{name}, {len({unit.seed for unit in finished})} seeds")
        columns.append(summaries)
    rows = [[name, *(_cell(column.get(name)) for column in columns)] for name in names]
    return _markdown(["", *heads], rows) + "\n"


def _cell(found: ContenderSummary | None) -> str:
    if found is None:
        return NOTHING
    parts = [_percent(found.final)]
    if found.targets:
        parts.append(_time(found.targets[len(found.targets) // 2]))
    if found.agreement is not None and found.epsilon is not None:
        parts.append(f"ARI {found.agreement.mean:.2f}")
    return "; ".join(parts)


def results(out: Path, data_dir: Path) -> Iterator[tuple[str, str]]:
    """Each experiment with its tables; then those that stand side by side."""
    begun = {}
    for file in sorted(HERE.glob("*.toml")):
        experiment = ExperimentFile.open(file, data_dir=data_dir).read()
        finished = complete(experiment, ResultsFolder(out / file.stem).read(experiment))
        yield file.stem, tables_of(experiment, finished)
        if finished:
            begun[file.stem] = experiment, finished
    for name, parts in SIDE_BY_SIDE.items():
        found = {part: begun[part] for part in parts if part in begun}
        yield name, side_by_side(found) if found else NOT_YET


def replaced(text: str, tables: Mapping[str, str]) -> str:
    """The text with these tables in place of what stands between their marks."""
    for name, table in tables.items():
        marks = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if found := marks.search(text):
            text = f"{text[: found.start()]}{found[1]}\n{table}\n{found[2]}{text[found.end() :]}"
    return text


def main() -> None:
    """Print, or replace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--into", type=Path, help="a file with marks, instead of printing")
    arguments = parser.parse_args()
    found = dict(results(arguments.out, arguments.data_dir.absolute()))
    if arguments.into is None:
        print("\n".join(f"{name}\n\n{table}" for name, table in found.items()))
        return
    arguments.into.write_text(replaced(arguments.into.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
