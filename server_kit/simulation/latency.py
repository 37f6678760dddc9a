"""How long a device takes for its part of a round, on the simulation's clock.

    download + steps x (seconds of a step) x (how slow it is) + upload + the network's answer time, twice

A time follows from (seed, device, round) alone: runs that are compared meet the same delays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from server_kit.simulation.chance import uniforms
from server_kit.simulation.ragged import FloatArray, IntArray, Ragged

_BITS_PER_MEGABIT = 1e6
Way = Literal["download", "upload"]


class Links(Protocol):
    """What connects devices to the server."""

    def transfer_seconds(self, devices: IntArray, round_number: int, size_bytes: FloatArray, way: Way) -> FloatArray:
        """How long each device takes to move its bytes."""


@dataclass(frozen=True, eq=False)
class RangedLinks:
    """Device i has between `low_mbps[i]` and `high_mbps[i]`, drawn anew each round, the same both ways."""

    low_mbps: FloatArray
    high_mbps: FloatArray
    seed: int

    def transfer_seconds(self, devices: IntArray, round_number: int, size_bytes: FloatArray, way: Way) -> FloatArray:
        low, high = self.low_mbps[devices], self.high_mbps[devices]
        mbps = low + (high - low) * uniforms(self.seed, "bandwidth", devices, round_number)
        return size_bytes * 8 / (mbps * _BITS_PER_MEGABIT)


@dataclass(frozen=True, eq=False)
class TracedLinks:
    """Device i sends over a measured link, second by second, from a moment drawn for each round and way."""

    traces: Ragged[np.float64]
    """Megabits in each second; each trace carries something."""
    trace_of: IntArray
    seed: int

    def transfer_seconds(self, devices: IntArray, round_number: int, size_bytes: FloatArray, way: Way) -> FloatArray:
        begin = uniforms(self.seed, f"moment of {way}", devices, round_number)
        sizes = np.broadcast_to(size_bytes * 8 / _BITS_PER_MEGABIT, devices.shape)
        each = zip(self.trace_of[devices], begin, sizes, strict=True)
        return np.array([self._seconds(int(trace), share, megabits) for trace, share, megabits in each])

    def _seconds(self, trace: int, share: float, megabits: float) -> float:
        carried = self._carried[trace]
        length = len(carried) - 1
        start = share * length
        wanted = float(np.interp(start, np.arange(length + 1), carried)) + megabits
        # A trace that comes to its end begins again.
        laps, rest = divmod(wanted, carried[-1])
        second = max(1, int(np.searchsorted(carried, rest, side="left")))
        partly = (rest - carried[second - 1]) / (carried[second] - carried[second - 1]) if rest > 0 else 0.0
        return max(0.0, float(laps * length + second - 1 + partly - start)) if megabits > 0 else 0.0

    @cached_property
    def _carried(self) -> tuple[FloatArray, ...]:
        """For each trace the megabits carried until each second."""
        return tuple(np.concatenate([[0.0], np.cumsum(self.traces[row])]) for row in range(len(self.traces)))


@dataclass(frozen=True, eq=False)
class Latency:
    """The speeds of a fleet; entry i of each array is device i's."""

    seed: int
    step_seconds: float
    compute_factors: FloatArray
    links: Links
    answer_seconds: FloatArray
    """How long the network takes to answer, whatever the size."""
    delay_chance: float = 0.0
    delay_seconds: float = 0.0
    """What a delay adds where chance brings one."""

    def seconds(
        self,
        devices: IntArray,
        round_number: int,
        *,
        bytes_down: float | FloatArray,
        bytes_up: float | FloatArray,
        steps: float | FloatArray | IntArray,
    ) -> FloatArray:
        """From being asked to having answered, for each device; sizes and steps may differ between them."""
        computing = self.compute_factors[devices] * self.step_seconds * np.asarray(steps)
        down = self.links.transfer_seconds(devices, round_number, np.asarray(bytes_down, np.float64), "download")
        up = self.links.transfer_seconds(devices, round_number, np.asarray(bytes_up, np.float64), "upload")
        delayed = uniforms(self.seed, "delay", devices, round_number) < self.delay_chance
        total: FloatArray = computing + down + up + 2 * self.answer_seconds[devices] + delayed * self.delay_seconds
        return total
