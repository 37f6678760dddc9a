"""Measured devices from a trace file: how fast phones are, how fast links are, when people charge.

The parts come from different people who never met: they are joined at random, and results should say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.datasets.errors import InvalidDataset
from server_kit.simulation.datasets.files import read_arrays
from server_kit.simulation.ragged import FloatArray, Ragged
from server_kit.simulation.sessions import Sessions

WEEK_SECONDS = 7 * 24 * 3600
_NEARLY_A_WEEK = 6.5 / 7


def read_compute_factors(path: Path) -> FloatArray:
    """For each phone, how many times longer than the median phone it computes."""
    (latency,) = _arrays(path, "device_latency_ms")
    numbers = _positive(latency, path, "device_latency_ms")
    return numbers / np.median(numbers)


def read_bandwidths(path: Path) -> Ragged[np.float64]:
    """Megabits in each second of each trace that carries anything at all."""
    mbps, offsets = _arrays(path, "bw_mbps", "bw_offset")
    traces = _ragged(mbps, offsets, path, "bw_mbps")
    if not np.isfinite(traces.values).all() or (traces.values < 0).any():
        raise InvalidDataset(f"bw_mbps in {path} holds a negative or infinite bandwidth; nothing was kept")
    carried = np.add.reduceat(traces.values, traces.offsets[:-1]) > 0
    kept = traces.where(np.repeat(carried, traces.sizes))
    return Ragged(kept.values, np.unique(kept.offsets))


def read_sessions(path: Path, trace: Literal["avail80", "avail100"] = "avail80") -> Sessions:
    """The user-weeks of a trace that are nearly whole, each placed at its time of the week (UTC)."""
    duration, offsets, first, start = _arrays(
        path, f"{trace}_duration_s", f"{trace}_offset", f"{trace}_first_online", f"{trace}_start_epoch_s"
    )
    durations = _ragged(_positive(duration, path, f"{trace}_duration_s"), offsets, path, f"{trace}_duration_s")
    if len(first) != len(durations) or len(start) != len(durations):
        raise InvalidDataset(f"{trace} in {path} has arrays of different lengths; nothing was kept")
    whole = np.add.reduceat(durations.values, durations.offsets[:-1]) >= _NEARLY_A_WEEK * WEEK_SECONDS
    if not whole.any():
        raise InvalidDataset(f"{trace} in {path} covers no whole week; nothing was kept")
    kept = durations.where(np.repeat(whole, durations.sizes))
    return Sessions.of_durations(
        Ragged(kept.values, np.unique(kept.offsets)),
        first[whole].astype(bool),
        np.mod(start[whole], WEEK_SECONDS).astype(np.float64),
    )


def _arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    arrays = read_arrays(path)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InvalidDataset(f"{path} has no array {missing[0]!r}, only {sorted(arrays)}; nothing was kept")
    return [arrays[name] for name in names]


def _positive(values: NDArray[Any], path: Path, what: str) -> FloatArray:
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iuf":
        raise InvalidDataset(f"{what} in {path} must be a list of numbers; nothing was kept")
    numbers = values.astype(np.float64)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise InvalidDataset(f"{what} in {path} must be above 0 everywhere; nothing was kept")
    return numbers


def _ragged(values: NDArray[Any], offsets: NDArray[Any], path: Path, what: str) -> Ragged[np.float64]:
    """Rows that are none of them empty and together all there is."""
    ends = offsets.astype(np.int64)
    if ends.ndim != 1 or len(ends) < 2 or ends[0] != 0 or ends[-1] != len(values) or (np.diff(ends) < 1).any():
        raise InvalidDataset(f"the offsets of {what} in {path} do not cut it into rows; nothing was kept")
    return Ragged(values.astype(np.float64), ends)
