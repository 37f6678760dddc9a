"""What an onlooker sees of a release, and the form of what is made of it: one number for each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """One run from outside: the numbers of the release and its length; an error shows neither."""

    values: NDArray[Any] | None
    length_bytes: int
    failed: bool = False


@dataclass(frozen=True)
class Observations:
    """Many runs: the coin that chose the world, and what was seen of each."""

    second: NDArray[np.bool_]
    values: NDArray[Any]
    """Runs by columns; NaN where a run showed fewer numbers than others."""
    length_bytes: Floats
    failed: NDArray[np.bool_]

    @classmethod
    def of(cls, coins: Sequence[int], seen: Sequence[Seen], columns: int | None = None) -> Observations:
        """As a table of `columns` numbers a run, or of as many as the longest release has."""
        import numpy as np

        return cls(
            np.array(coins, dtype=bool),
            _table([run.values for run in seen], columns),
            np.array([run.length_bytes for run in seen], dtype=np.float64),
            np.array([run.failed for run in seen], dtype=bool),
        )

    def halves(self) -> tuple[Observations, Observations]:
        """The runs that came first, to learn from, and the others, to see what the lesson is worth."""
        middle = len(self.second) // 2
        return self._part(slice(None, middle)), self._part(slice(middle, None))

    def _part(self, runs: slice) -> Observations:
        return Observations(self.second[runs], self.values[runs], self.length_bytes[runs], self.failed[runs])


@dataclass(frozen=True)
class Statistic:
    """A named number for each run; NaN means that this run shows nothing by it."""

    name: str
    of: Callable[[Observations], Floats]

    def of_each(self, seen: Observations) -> Floats:
        """The number of every run; what overflows or has no meaning is infinite or NaN."""
        import numpy as np

        with np.errstate(all="ignore"):
            return self.of(seen)


def numbers_of(payload: bytes, decode: Callable[[bytes], Any] | None) -> NDArray[Any]:
    """The release as a row of numbers: decoded if possible, else its bytes as integers of 8 bytes."""
    import numpy as np

    if decode is not None:
        try:
            decoded = decode(payload)
            parts = list(decoded.values()) if isinstance(decoded, Mapping) else [decoded]
            row = np.concatenate([np.ravel(np.asarray(part)) for part in parts])
        except Exception:  # whoever cannot decode a message still sees its bytes
            row = np.empty(0, dtype=object)
        if row.dtype.kind in "iufb":
            return row
    return np.frombuffer(payload + bytes(-len(payload) % 8), dtype="<i8")


def _table(rows: Sequence[NDArray[Any] | None], columns: int | None) -> NDArray[Any]:
    import numpy as np

    width = max((len(row) for row in rows if row is not None), default=0) if columns is None else columns
    if all(row is not None and len(row) == width for row in rows):
        return np.array(rows).reshape(len(rows), width)
    table = np.full((len(rows), width), np.nan)
    for target, row in zip(table, rows, strict=True):
        if row is not None:
            target[: len(row)] = row[:width]
    return table
