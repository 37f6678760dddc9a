"""When devices are on: patterns of on and off that repeat, looked up for any number of devices at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from server_kit.simulation.ragged import BoolArray, FloatArray, IntArray, Ragged


@dataclass(frozen=True, eq=False)
class Sessions:
    """Row r is on or off from its start, changes at each of its `switches`, and begins again after its period."""

    switches: Ragged[np.float64]
    """Seconds after the start of the row, ascending, below its period."""
    starts_online: BoolArray
    period_seconds: FloatArray
    start_seconds: FloatArray
    """When on the clock each row starts."""

    def __len__(self) -> int:
        return len(self.switches)

    @classmethod
    def of_durations(
        cls, durations_seconds: Ragged[np.float64], starts_online: BoolArray, start_seconds: FloatArray
    ) -> Sessions:
        """From how long each state lasts, one after the other; their sum is the period."""
        sums = np.cumsum(durations_seconds.values)
        offsets = durations_seconds.offsets
        before = np.concatenate([[0.0], sums])[offsets[:-1]]
        ends = sums - np.repeat(before, durations_seconds.sizes)
        last = np.zeros(len(ends), dtype=bool)
        last[offsets[1:] - 1] = True
        return cls(Ragged(ends, offsets).where(~last), starts_online, ends[last], start_seconds)

    def online(self, rows: IntArray, time_seconds: FloatArray | float) -> BoolArray:
        """Whether each of these rows is on at this time, or each at its own."""
        within = np.mod(time_seconds - self.start_seconds[rows], self.period_seconds[rows])
        changes = np.searchsorted(self._keys, rows * self._stride + within, side="right") - self.switches.offsets[rows]
        odd: BoolArray = changes % 2 == 1
        return self.starts_online[rows] ^ odd

    @cached_property
    def _stride(self) -> float:
        return 2 * float(self.period_seconds.max())

    @cached_property
    def _keys(self) -> FloatArray:
        # Rows one after the other on a single line, so that one search serves all of them.
        return self.switches.owners * self._stride + self.switches.values
