"""What the runs of an experiment say together: each contender by itself, and against the first on the same seeds.

Accuracies are shares from 0 to 1; `final` and the tenths are means of the last ten evaluations, so that no
lucky moment counts. A seed that never reached a target has no time: it is counted, and left out of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from server_kit.simulation.experiments.experiment import Experiment, Unit
from server_kit.simulation.experiments.results_folder import Finished
from server_kit.simulation.metrics import final_accuracy, first_reaching
from server_kit.simulation.records import Run

LAST = 10


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; without a second seed there is no standard error."""

    mean: float
    standard_error: float | None
    seeds: int


@dataclass(frozen=True)
class Reached:
    """How long and with how much a contender got to a target, over the seeds that did."""

    target: float
    reached: int
    seeds: int
    virtual_seconds: Estimate | None
    traffic_bytes: Estimate | None
    client_steps: Estimate | None


@dataclass(frozen=True)
class Difference:
    """Final accuracy minus that of the first contender, seed by seed; the interval is Student's."""

    mean: float
    low: float | None
    high: float | None
    pairs: int
    better: int
    """On how many of the seeds."""


@dataclass(frozen=True)
class ContenderSummary:
    """One contender over its seeds; None where there is nothing to say."""

    name: str
    preset: str
    seeds: tuple[int, ...]
    final: Estimate | None
    best: Estimate | None
    median: Estimate | None
    worst_tenth: Estimate | None
    best_tenth: Estimate | None
    variance_points: Estimate | None
    """In squared percentage points."""
    cohorts: Estimate | None
    agreement: Estimate | None
    epsilon: float | None
    """The most that any device spent with any seed."""
    virtual_seconds: Estimate | None
    unused_answers: int
    """Late, unusable, or from devices that were not asked."""
    targets: tuple[Reached, ...]
    against_first: Difference | None


def summarise(experiment: Experiment, finished: Mapping[Unit, Finished]) -> tuple[ContenderSummary, ...]:
    """A summary of each contender, in the order of the file."""
    runs = {
        contender.name: {unit.seed: each.run for unit, each in finished.items() if unit.contender == contender.name}
        for contender in experiment.contenders
    }
    first = runs[experiment.contenders[0].name]
    return tuple(
        _contender(contender.name, contender.preset, runs[contender.name], experiment.repeats.targets, first)
        for contender in experiment.contenders
    )


def identical(finished: Mapping[Unit, Finished]) -> list[tuple[str, str]]:
    """Pairs of contenders that ended alike on every seed they share: what sets them apart had no effect."""
    runs: dict[str, dict[int, Run]] = {}
    for unit, each in finished.items():
        runs.setdefault(unit.contender, {})[unit.seed] = replace(each.run, preset="")
    return [(first, other) for first, other in combinations(runs, 2) if _alike(runs[first], runs[other])]


def _alike(first: Mapping[int, Run], other: Mapping[int, Run]) -> bool:
    shared = first.keys() & other.keys()
    # As text: NaN differs from itself.
    return bool(shared) and all(repr(first[seed]) == repr(other[seed]) for seed in shared)


def final_of(run: Run) -> float:
    """The accuracy that one would get; NaN for a run without evaluations."""
    return final_accuracy(run.curve, LAST).last_mean if run.points else math.nan


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and standard error of what is known."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    error = _deviation(known, mean) / math.sqrt(len(known)) if len(known) > 1 else None
    return Estimate(mean, error, len(known))


def paired(first: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """`other` minus `first` on the seeds that both have."""
    known = [other[seed] - first[seed] for seed in sorted(first.keys() & other.keys())]
    known = [difference for difference in known if not math.isnan(difference)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    low = high = None
    if len(known) > 1:
        from scipy.special import stdtrit

        half = float(stdtrit(len(known) - 1, 0.975)) * _deviation(known, mean) / math.sqrt(len(known))
        low, high = mean - half, mean + half
    return Difference(mean, low, high, len(known), sum(difference > 0 for difference in known))


def _contender(
    name: str, preset: str, runs: Mapping[int, Run], targets: Sequence[float], first: Mapping[int, Run]
) -> ContenderSummary:
    told = [run for run in runs.values() if run.points]

    def over_seeds(figure: Callable[[Run], float | None]) -> Estimate | None:
        return estimate(map(figure, told))

    epsilons = [run.points[-1].epsilon for run in told]
    return ContenderSummary(
        name=name,
        preset=preset,
        seeds=tuple(sorted(runs)),
        final=over_seeds(final_of),
        best=over_seeds(lambda run: final_accuracy(run.curve).best),
        median=over_seeds(lambda run: final_accuracy(run.curve).median),
        worst_tenth=over_seeds(lambda run: late_mean(run, "worst_tenth")),
        best_tenth=over_seeds(lambda run: late_mean(run, "best_tenth")),
        variance_points=over_seeds(lambda run: late_mean(run, "variance_points")),
        cohorts=over_seeds(lambda run: len(run.points[-1].cohorts)),
        agreement=over_seeds(lambda run: run.points[-1].agreement),
        epsilon=max((epsilon for epsilon in epsilons if epsilon is not None), default=None),
        virtual_seconds=over_seeds(lambda run: run.points[-1].progress.seconds),
        unused_answers=sum(sum(run.refusals.values()) for run in runs.values()),
        targets=tuple(_reached(told, target) for target in targets),
        against_first=None if runs is first else paired(_finals(first), _finals(runs)),
    )


def _finals(runs: Mapping[int, Run]) -> dict[int, float]:
    return {seed: final_of(run) for seed, run in runs.items()}


def late_mean(run: Run, figure: str) -> float | None:
    """A figure of the spread over devices, in the mean of the last ten evaluations."""
    late = estimate(getattr(point.spread, figure) for point in run.points[-LAST:])
    return None if late is None else late.mean


def _reached(runs: Sequence[Run], target: float) -> Reached:
    there = [point for run in runs if (point := first_reaching(run.curve, target)) is not None]
    return Reached(
        target=target,
        reached=len(there),
        seeds=len(runs),
        virtual_seconds=estimate(point.seconds for point in there),
        traffic_bytes=estimate(point.bytes for point in there),
        client_steps=estimate(point.client_steps for point in there),
    )


def _deviation(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
