"""When devices can be asked: rules that draw the comings and goings of a fleet. Time 0 is a midnight, UTC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.chance import generator, uniforms
from server_kit.simulation.ragged import BoolArray, FloatArray, IntArray, Ragged
from server_kit.simulation.sessions import Sessions
from server_kit.simulation.traces import read_sessions

_HOUR, _DAY = 3600.0, 86400.0
_PATTERNS = 4096  # different on/off patterns in a fleet; devices beyond share them, each from another moment
_CYCLES = 200  # of on and off before a pattern repeats


class Presence(Protocol):
    """Who is there when; a question has the same answer however often it is asked."""

    def available(self, devices: IntArray, time_seconds: float) -> BoolArray: ...


class Availability(Protocol):
    """Draws the presence of a fleet; the same seed, the same fleet."""

    def draw(self, num_devices: int, seed: int) -> Presence: ...


@dataclass(frozen=True)
class Always:
    """Nobody is ever away."""

    def draw(self, num_devices: int, seed: int) -> Presence:
        return self

    def available(self, devices: IntArray, time_seconds: float) -> BoolArray:
        return np.ones(len(devices), dtype=bool)


@dataclass(frozen=True)
class DropOut:
    """In each period a device is away with chance `rate`, independently of all else."""

    rate: float = 0.1
    period_seconds: float = 60.0

    def __post_init__(self) -> None:
        _check_share("rate", self.rate)
        _check_seconds(self.period_seconds)

    def draw(self, num_devices: int, seed: int) -> Presence:
        return _DropOuts(self.rate, self.period_seconds, seed)


@dataclass(frozen=True)
class OnOff:
    """Stretches of on and off of exponential length, with these means."""

    mean_on_seconds: float = _HOUR
    mean_off_seconds: float = 3 * _HOUR

    def __post_init__(self) -> None:
        _check_seconds(self.mean_on_seconds, self.mean_off_seconds)

    def draw(self, num_devices: int, seed: int) -> Presence:
        rng = generator(seed, "availability")
        rows = min(num_devices, _PATTERNS)
        durations = rng.exponential(
            np.tile([self.mean_on_seconds, self.mean_off_seconds], _CYCLES), (rows, 2 * _CYCLES)
        )
        stretches = Ragged.of_sizes(durations.reshape(-1), np.full(rows, 2 * _CYCLES))
        patterns = Sessions.of_durations(stretches, np.ones(rows, dtype=bool), np.zeros(rows))
        row_of = np.arange(num_devices) % rows
        return _Scheduled(patterns, row_of, rng.uniform(0, patterns.period_seconds[row_of]))


@dataclass(frozen=True)
class TracedSessions:
    """Measured user-weeks, one for each device at random, at their own time of the week."""

    path: Path
    trace: Literal["avail80", "avail100"] = "avail80"

    def draw(self, num_devices: int, seed: int) -> Presence:
        weeks = read_sessions(self.path, self.trace)
        row_of = generator(seed, "availability").integers(len(weeks), size=num_devices)
        return _Scheduled(weeks, row_of, np.zeros(num_devices))


@dataclass(frozen=True)
class Diurnal:
    """Devices that charge at night: on for `hours` a day from a time of their own, some nights not at all."""

    start_hour: float = 22.0
    spread_hours: float = 1.5
    hours: float = 8.0
    skip_rate: float = 0.1
    utc_offsets_hours: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        _check_share("skip_rate", self.skip_rate)
        if not (0 < self.hours <= 24 and 0 <= self.spread_hours < math.inf and self.utc_offsets_hours):
            raise InvalidSetting("hours must be above 0 and up to 24, spread_hours at least 0; no fleet was drawn")
        if not all(map(math.isfinite, (self.start_hour, *self.utc_offsets_hours))):
            raise InvalidSetting("start_hour and utc_offsets_hours must be times of the day; no fleet was drawn")

    def draw(self, num_devices: int, seed: int) -> Presence:
        rng = generator(seed, "availability")
        local = rng.normal(self.start_hour, self.spread_hours, num_devices)
        starts = (local - rng.choice(self.utc_offsets_hours, num_devices)) * _HOUR
        return _Nights(starts, self.hours * _HOUR, self.skip_rate, seed)


@dataclass(frozen=True)
class _DropOuts:
    rate: float
    period_seconds: float
    seed: int

    def available(self, devices: IntArray, time_seconds: float) -> BoolArray:
        period = math.floor(time_seconds / self.period_seconds)
        return uniforms(self.seed, "drop-out", devices, period) >= self.rate


@dataclass(frozen=True, eq=False)
class _Scheduled:
    sessions: Sessions
    row_of: IntArray
    ahead_seconds: FloatArray
    """How far each device is ahead of the others in its row."""

    def available(self, devices: IntArray, time_seconds: float) -> BoolArray:
        return self.sessions.online(self.row_of[devices], time_seconds + self.ahead_seconds[devices])


@dataclass(frozen=True, eq=False)
class _Nights:
    starts_seconds: FloatArray
    length_seconds: float
    skip_rate: float
    seed: int

    def available(self, devices: IntArray, time_seconds: float) -> BoolArray:
        night, within = np.divmod(time_seconds - self.starts_seconds[devices], _DAY)
        skipped = uniforms(self.seed, "night", devices, night.astype(np.int64)) < self.skip_rate
        return (within < self.length_seconds) & ~skipped


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidSetting(f"{name} must be from 0 to 1, got {value}; no fleet was drawn")


def _check_seconds(*values: float) -> None:
    if not all(0 < value < math.inf for value in values):
        raise InvalidSetting(f"lengths of time must be above 0, got {values}; no fleet was drawn")
