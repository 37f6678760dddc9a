"""Runs with several seeds as one line: their mean where all of them have been, and how far they scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from server_kit.simulation.ragged import FloatArray
from server_kit.simulation.records import Point, Run

Figure = Callable[[Point], float | None]
_PLACES = 200


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean over seeds and its standard error at each place."""

    x: FloatArray
    mean: FloatArray
    error: FloatArray


def mean_curve(runs: Iterable[Run], x: Figure, y: Figure) -> Curve | None:
    """The mean of y over x, joined by straight lines between evaluations; None where there is too little."""
    lines = [line for run in runs if (line := _line(run, x, y)) is not None]
    if not lines:
        return None
    begin, end = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    if end <= begin:
        return None
    # The evaluations themselves where all seeds share them, else evenly spaced places between first and last.
    shared = all(np.array_equal(line[0], lines[0][0]) for line in lines)
    places = lines[0][0] if shared else np.linspace(begin, end, _PLACES)
    values = np.array([np.interp(places, *line) for line in lines])
    scatter = values.std(axis=0, ddof=1) / math.sqrt(len(lines)) if len(lines) > 1 else np.zeros(len(places))
    return Curve(places, values.mean(axis=0), scatter)


def _line(run: Run, x: Figure, y: Figure) -> tuple[FloatArray, FloatArray] | None:
    told = [(x(point), y(point)) for point in run.points]
    known = [(at, value) for at, value in told if at is not None and value is not None and not math.isnan(value)]
    if len(known) < 2:
        return None
    places, values = np.array(known, dtype=np.float64).T
    return places, values


def worst_cohort(point: Point) -> float | None:
    """The accuracy of the cohort that does worst."""
    return min(_cohorts(point), default=None)


def best_cohort(point: Point) -> float | None:
    """The accuracy of the cohort that does best."""
    return max(_cohorts(point), default=None)


def _cohorts(point: Point) -> list[float]:
    return [each.accuracy for each in point.cohorts.values() if not math.isnan(each.accuracy)]
