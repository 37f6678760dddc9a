"""Statistics that are learned: how much more often a symbol is seen in one world than in the other.

One half of the scouting runs teaches the odds of every symbol, number by number and for all together; the other
half, which took no part in that, says what the lesson is worth (`privacy.auditing.game`). Neither is among the runs
that the verdict rests on, so however much was tried, a bound is wrong no more often than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.auditing.observations import Observations, Statistic
from privacy.auditing.readings import Reading, low_bit_readings, support_readings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Family = Callable[["NDArray[Any]", Sequence[float]], list[Reading]]

FAMILIES: dict[str, Family] = {
    "support": lambda numbers, _: support_readings(numbers),
    "low bits": low_bit_readings,
}
"""What is learned about; a test leaves one out and shows what is missed without it."""

_MOST_COLUMNS = 256
_MOST_STATISTICS = 16
_BEST_COLUMNS = 2  # of each reading
_STANDARD_ERRORS = 3.0  # by which the worlds must differ in a symbol for it to count


@dataclass(frozen=True)
class _Lesson:
    """A statistic and what it seemed worth to the runs that it was learned from."""

    worth: float
    statistic: Statistic


def learned_from(lesson: Observations, centres: tuple[Any, Any] | None = None) -> list[Statistic]:
    """The readings that told the worlds apart best; none where no symbol did."""
    import numpy as np

    if not lesson.values.shape[1] or lesson.second.all() or not lesson.second.any():
        return []
    columns = np.unique(np.linspace(0, lesson.values.shape[1] - 1, _MOST_COLUMNS).astype(np.int64))
    numbers = _numbers(lesson, columns)
    sums = [] if centres is None else _sums_without_noise(centres)
    with np.errstate(all="ignore"):
        readings = [reading for family in FAMILIES.values() for reading in family(numbers, sums)]
        lessons = [found for each in readings for found in _lessons(each, numbers, lesson.second, columns)]
    lessons.sort(key=lambda found: -found.worth)
    return [found.statistic for found in lessons[:_MOST_STATISTICS]]


def _numbers(seen: Observations, columns: NDArray[np.int64]) -> NDArray[Any]:
    """These numbers of each run, and the sum of all as one more: noise may be fair in each and not in the sum."""
    import numpy as np

    total = seen.values.sum(axis=1, keepdims=True, dtype=seen.values.dtype if seen.values.dtype.kind != "b" else None)
    return np.concatenate([seen.values[:, columns], total], axis=1)


def _sums_without_noise(centres: tuple[Any, Any]) -> list[float]:
    """What the sums of both worlds hold, and by how much they differ."""
    import numpy as np

    first, second = (np.nan_to_num(np.array(centre, dtype=np.float64)).ravel() for centre in centres)
    held: list[float] = np.unique(np.concatenate([first, second, np.abs(second - first)])).tolist()
    return held


def _lessons(
    reading: Reading, numbers: NDArray[Any], second: NDArray[np.bool_], columns: NDArray[np.int64]
) -> list[_Lesson]:
    import numpy as np

    symbols = reading.of(numbers)
    counts = np.array([_counted(symbols[second == world], reading.symbols) for world in (False, True)])
    each, worth = _odds(counts)
    best = [int(place) for place in np.argsort(-worth, kind="stable")[:_BEST_COLUMNS] if worth[place] > 0]
    lessons = [_Lesson(float(worth[place]), _of_one(reading, each[place], place, columns)) for place in best]
    if len(columns) > 1:
        if np.count_nonzero(worth[:-1]) > 1:
            lessons.append(_Lesson(float(worth[:-1].sum()), _of_all(reading, each[:-1], columns)))
        alike, together = _odds(counts[:, :-1].sum(axis=1, keepdims=True))
        if together[0] > 0:
            table = np.repeat(alike, len(columns), axis=0)
            lessons.append(_Lesson(float(together[0]) * len(columns), _of_all(reading, table, columns, " alike")))
    return lessons


def _counted(symbols: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How often each symbol occurs, columns by symbols; the last one means that nothing was shown."""
    import numpy as np

    width = symbols.shape[1]
    cells = symbols + np.arange(width) * (size + 1)
    return np.bincount(cells.ravel(), minlength=width * (size + 1)).reshape(width, size + 1)


def _odds(counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The log-odds of each column's symbols for the second world, 0 where the worlds hardly differ; and their worth."""
    import numpy as np

    seen = counts[:, :, :-1].astype(np.float64)
    runs = np.maximum(seen.sum(axis=2, keepdims=True), 1.0)
    # Half a count more keeps the logarithms finite.
    log_odds = np.log((seen[1] + 0.5) / runs[1]) - np.log((seen[0] + 0.5) / runs[0])
    rates = seen / runs
    both = seen.sum(axis=0) / runs.sum(axis=0)
    spread = np.sqrt(both * (1 - both) * (1 / runs[0] + 1 / runs[1]))
    differs = np.abs(rates[1] - rates[0]) > _STANDARD_ERRORS * spread
    log_odds = np.where(differs, log_odds, 0.0)
    worth: Floats = np.sum((rates[1] - rates[0]) * log_odds, axis=1)
    return np.concatenate([log_odds, np.zeros((len(log_odds), 1))], axis=1), worth


def _of_one(reading: Reading, odds: Floats, place: int, columns: NDArray[np.int64]) -> Statistic:
    def of(seen: Observations) -> Floats:
        found: Floats = odds[reading.of(_numbers(seen, columns)[:, place])]
        return found

    name = f"value {columns[place]}" if place < len(columns) else "the sum of all values"
    return Statistic(f"{reading.name} {name}", of)


def _of_all(reading: Reading, odds: Floats, columns: NDArray[np.int64], how: str = "") -> Statistic:
    import numpy as np

    def of(seen: Observations) -> Floats:
        symbols = reading.of(_numbers(seen, columns)[:, :-1])
        together: Floats = np.take_along_axis(odds, symbols.T, axis=1).sum(axis=0)
        return together

    return Statistic(f"{reading.name} all values{how}", of)
