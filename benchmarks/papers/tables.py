"""Tables for benchmarks/README.md from what the experiments came to, as far as they are.

    python -m benchmarks.papers.tables OUT --data-dir DATA                              take in what was run, and print
    python -m benchmarks.papers.tables OUT --data-dir DATA --into benchmarks/README.md  and replace the tables in a file

OUT holds a results folder for each experiment, called as its file; what is finished there is added to the lines in
benchmarks/papers/results. Only seeds count that all contenders have finished. In a file a table stands between
`<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.papers.expected import CLAIMS, PUBLISHED, SIDE_BY_SIDE, Claim
from benchmarks.papers.figures import RESULTS, Figures, current, figures_of, read, write
from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.experiment_file import ExperimentFile
from server_kit.simulation.experiments.results_folder import ResultsFolder
from server_kit.simulation.experiments.summary import Difference, Estimate, estimate, paired

HERE = Path(__file__).parent
NOTHING = "–"
_CASE = ": "
NOT_YET = "No seed is finished yet.\n"
Runs = Mapping[str, Mapping[int, Figures]]
"""By contender and seed."""


def tables_of(experiment: Experiment, finished: Mapping[Unit, Figures]) -> str:
    """What an experiment came to: its contenders, then the claims, with the seeds and commits."""
    name = Path(experiment.file.name).stem
    if not finished:
        return NOT_YET
    commits = sorted({_short(each.commit) for each in finished.values()})
    runs = by_contender(experiment, finished)
    parts = [f"`{name}.toml`, {_seeds(finished)}, commit {', '.join(commits)}.", _contenders(experiment, runs)]
    if CLAIMS.get(name):
        parts.append(_claims(CLAIMS[name], runs))
    return "\n\n".join(parts) + "\n"


def _seeds(finished: Iterable[Unit]) -> str:
    seeds = sorted({unit.seed for unit in finished})
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _short(commit: str) -> str:
    """With the + of a checkout that had changes."""
    return commit[:7] + "+" * commit.endswith("+")


def complete(experiment: Experiment, finished: Mapping[Unit, Figures]) -> dict[Unit, Figures]:
    """Pairs are only fair among seeds that everyone has run."""
    names = [contender.name for contender in experiment.contenders]
    seeds = {unit.seed for unit in finished}
    whole = {seed for seed in seeds if all(Unit(name, seed) in finished for name in names)}
    return {unit: each for unit, each in finished.items() if unit.seed in whole}


def by_contender(experiment: Experiment, finished: Mapping[Unit, Figures]) -> Runs:
    """In the order of the file."""
    runs: dict[str, dict[int, Figures]] = {contender.name: {} for contender in experiment.contenders}
    for unit, each in finished.items():
        runs[unit.contender][unit.seed] = each
    return runs


def _contenders(experiment: Experiment, runs: Runs) -> str:
    if all(_CASE in contender for contender in runs):
        return _by_case(runs)
    name, targets = Path(experiment.file.name).stem, experiment.repeats.targets
    columns: dict[str, list[str]] = {}

    def show(header: str, cell: Callable[[Iterable[Figures]], str]) -> None:
        columns[header] = [cell(each.values()) for each in runs.values()]

    show("accuracy", lambda found: _percent(estimate(each.final for each in found)))
    show("worst 10 %", lambda found: _percent(estimate(each.worst_tenth for each in found)))
    if name in PUBLISHED or name == "equal_epsilon_device":
        show("best over rounds", lambda found: _percent(estimate(each.best for each in found)))
    if name in PUBLISHED:
        columns["published"] = [PUBLISHED[name].get(contender, NOTHING) for contender in runs]
    if targets:
        middle = targets[len(targets) // 2]
        show(f"time to {100 * middle:g} %", lambda found: _time(found, middle))
    everyone = [each for found in runs.values() for each in found.values()]
    if any(each.agreement for each in everyone):
        show("ARI", lambda found: _mean((each.agreement for each in found), ".2f"))
    show("cohorts", lambda found: _mean((each.cohorts for each in found), ".1f"))
    if any(each.epsilon for each in everyone):
        show("ε spent", _most_spent)
    rows = [[contender, *cells] for contender, *cells in zip(runs, *columns.values(), strict=True)]
    return _markdown(["", *columns], rows)


def _by_case(runs: Runs) -> str:
    """Contenders called `WAY: CASE`, a row for each case: accuracy and, after a backdoor, how often it works."""
    ways = list(dict.fromkeys(contender.partition(_CASE)[0] for contender in runs))
    cases = list(dict.fromkeys(contender.partition(_CASE)[2] for contender in runs))
    found = [[list(runs.get(f"{way}{_CASE}{case}", {}).values()) for way in ways] for case in cases]
    rows = [[case, *map(_accuracy_and_backdoor, cells)] for case, cells in zip(cases, found, strict=True)]
    return _markdown(["", *ways], rows)


def _accuracy_and_backdoor(found: list[Figures]) -> str:
    accuracy = _percent(estimate(each.final for each in found))
    backdoor = estimate(each.backdoor for each in found)
    return accuracy if backdoor is None else f"{accuracy}; {100 * backdoor.mean:.0f}"


def _claims(claims: list[Claim], runs: Runs) -> str:
    rows = [[_said(claim), *_shown(claim, runs)] for claim in claims if {claim.better, claim.other} <= runs.keys()]
    return _markdown(["on the same seeds", "difference", "95 % interval", "better on"], rows)


def _said(claim: Claim) -> str:
    if claim.target is None:
        return f"accuracy, {claim.better} against {claim.other}"
    return f"time to {100 * claim.target:g} %, {claim.better} against {claim.other}"


def _shown(claim: Claim, runs: Runs) -> list[str]:
    if claim.target is None:
        found = paired(*(_finals(runs[who]) for who in (claim.other, claim.better)))
        return [NOTHING] * 3 if found is None else _difference(found)
    better, other = (_log_times(runs[who], claim.target) for who in (claim.better, claim.other))
    found = paired(other, better)
    return ["one of them never gets there", NOTHING, NOTHING] if found is None else _ratio(found)


def _finals(runs: Mapping[int, Figures]) -> dict[int, float]:
    return {seed: math.nan if each.final is None else each.final for seed, each in runs.items()}


def _log_times(runs: Mapping[int, Figures], target: float) -> dict[int, float]:
    return {seed: math.log(each.seconds_to[target]) for seed, each in runs.items() if target in each.seconds_to}


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


def _mean(figures: Iterable[float | None], shape: str) -> str:
    found = estimate(figures)
    return NOTHING if found is None else f"{found.mean:{shape}}"


def _most_spent(found: Iterable[Figures]) -> str:
    most = max((each.epsilon for each in found if each.epsilon is not None), default=None)
    return NOTHING if most is None else f"{most:.2f}"


def _time(found: Iterable[Figures], target: float) -> str:
    """Over the seeds that got there, and how many those were."""
    times = [each.seconds_to.get(target) for each in found]
    there = [seconds for seconds in times if seconds is not None]
    if not there:
        return NOTHING
    missing = "" if len(there) == len(times) else f" ({len(there)} of {len(times)})"
    return f"{math.fsum(there) / len(there):.0f} s{missing}"


def _markdown(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---", *["--:"] * (len(headers) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def side_by_side(found: Mapping[str, tuple[Experiment, Mapping[Unit, Figures]]]) -> str:
    """Accuracies in several experiments, and the time to their middle target where they have one."""
    heads, columns, names = [], [], dict[str, None]()
    for name, (experiment, finished) in found.items():
        runs, seeds = by_contender(experiment, finished), len({unit.seed for unit in finished})
        names |= dict.fromkeys(runs)
        heads.append(f"{name}, {seeds} seed{'s' * (seeds > 1)}")
        columns.append((runs, experiment.repeats.targets))
    rows = [[name, *(_cell(runs.get(name, {}), targets) for runs, targets in columns)] for name in names]
    return _markdown(["", *heads], rows) + "\n"


def _cell(runs: Mapping[int, Figures], targets: tuple[float, ...]) -> str:
    if not runs:
        return NOTHING
    found = runs.values()
    parts = [_percent(estimate(each.final for each in found))]
    if targets:
        parts.append(_time(found, targets[len(targets) // 2]))
    if any(each.agreement is not None and each.epsilon is not None for each in found):
        parts.append(f"ARI {_mean((each.agreement for each in found), '.2f')}")
    return "; ".join(parts)


def taken_in(experiment: Experiment, out: Path, results: Path) -> dict[Unit, Figures]:
    """What is known of an experiment: kept lines that are not stale, and over them what `out` has finished."""
    name = Path(experiment.file.name).stem
    kept = current(experiment, read(results / f"{name}.csv"))
    finished = ResultsFolder(out / name).read(experiment)
    kept |= {unit: figures_of(experiment, each) for unit, each in finished.items() if each.run.points}
    if kept:
        write(results / f"{name}.csv", kept.values(), experiment.repeats.targets)
    return kept


def tables(out: Path, data_dir: Path) -> Iterator[tuple[str, str]]:
    """Each experiment with its tables; then those that stand side by side."""
    begun = {}
    for file in sorted(HERE.glob("*.toml")):
        experiment = ExperimentFile.open(file, data_dir=data_dir).read()
        finished = complete(experiment, taken_in(experiment, out, RESULTS))
        yield file.stem, tables_of(experiment, finished)
        if finished:
            begun[file.stem] = experiment, finished
    for name, parts in SIDE_BY_SIDE.items():
        found = {part: begun[part] for part in parts if part in begun}
        yield name, side_by_side(found) if found else NOT_YET


def replaced(text: str, new: Mapping[str, str]) -> str:
    """The text with these tables in place of what stands between their marks."""
    for name, table in new.items():
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
    found = dict(tables(arguments.out, arguments.data_dir.absolute()))
    if arguments.into is None:
        print("\n".join(f"{name}\n\n{table}" for name, table in found.items()))
        return
    arguments.into.write_text(replaced(arguments.into.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
