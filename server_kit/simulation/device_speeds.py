"""How fast devices are: rules that draw the speeds of a fleet.

A step of a device of speed 1 takes `step_seconds`; the others take a factor longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.chance import generator
from server_kit.simulation.latency import Latency, RangedLinks, TracedLinks
from server_kit.simulation.partition.apportion import apportion
from server_kit.simulation.ragged import FloatArray, IntArray
from server_kit.simulation.traces import read_bandwidths, read_compute_factors

Range = tuple[float, float]


class Speeds(Protocol):
    """Draws the speeds of a fleet; the same seed, the same fleet."""

    def draw(self, num_devices: int, seed: int) -> Latency: ...


@dataclass(frozen=True)
class UniformSpeeds:
    """Factors anywhere in a range; the default makes all devices equal."""

    factors: Range = (1.0, 1.0)
    mbps: Range = (100.0, 100.0)
    answer_seconds: float = 0.0
    step_seconds: float = 0.1

    def __post_init__(self) -> None:
        _check(self.step_seconds, (1.0,), self.factors, self.mbps)
        _check_answer(self.answer_seconds)

    def draw(self, num_devices: int, seed: int) -> Latency:
        rng = generator(seed, "device speeds")
        factors, mbps = rng.uniform(*self.factors, num_devices), rng.uniform(*self.mbps, num_devices)
        links = RangedLinks(mbps, mbps, seed)
        return Latency(seed, self.step_seconds, factors, links, np.full(num_devices, self.answer_seconds))


@dataclass(frozen=True)
class HaccsSpeeds:
    """HACCS's table: fast, medium, slow and very slow devices, drawn for computing and for bandwidth apart.

    Its code takes about ten seconds for the ten batches of a fast device, hence a second a step.
    """

    shares: tuple[float, ...] = (0.60, 0.20, 0.15, 0.05)
    factors: tuple[Range, ...] = ((1.0, 1.0), (1.5, 2.0), (2.0, 2.5), (2.5, 3.0))
    mbps: tuple[Range, ...] = ((75.0, 100.0), (50.0, 75.0), (25.0, 50.0), (1.0, 25.0))
    answer_seconds: Range = (0.020, 0.200)
    step_seconds: float = 1.0

    def __post_init__(self) -> None:
        _check(self.step_seconds, self.shares, *self.factors, *self.mbps, self.answer_seconds)
        _check_length(len(self.shares), len(self.factors), len(self.mbps))

    def draw(self, num_devices: int, seed: int) -> Latency:
        rng = generator(seed, "device speeds")
        factors = _within(self.factors, _classes(self.shares, num_devices, rng), rng)
        mbps = _within(self.mbps, _classes(self.shares, num_devices, rng), rng)
        answers = rng.uniform(*self.answer_seconds, num_devices)
        return Latency(seed, self.step_seconds, factors, RangedLinks(mbps, mbps, seed), answers)


@dataclass(frozen=True)
class FactorSpeeds:
    """A few kinds of device and of link: AFL-Lib's, which CASA uses, with now and then an extra delay.

    Factors 1, 1.81 and 11.6 are a Jetson TX2, a Jetson Nano and a Raspberry Pi; links are WiFi, 4G and 5G.
    """

    factors: tuple[float, ...] = (1.0, 1.81, 11.6)
    shares: tuple[float, ...] = (1.0, 1.0, 1.0)
    mbps: tuple[Range, ...] = ((150.0, 600.0), (20.0, 100.0), (50.0, 1000.0))
    link_shares: tuple[float, ...] = (1.0, 1.0, 1.0)
    delay_chance: float = 0.1
    delay_seconds: float = 10.0
    step_seconds: float = 0.1

    def __post_init__(self) -> None:
        _check(self.step_seconds, self.shares, *((factor, factor) for factor in self.factors), *self.mbps)
        _check(self.step_seconds, self.link_shares)
        _check_length(len(self.shares), len(self.factors))
        _check_length(len(self.link_shares), len(self.mbps))
        if not (0 <= self.delay_chance <= 1 and 0 <= self.delay_seconds < math.inf):
            raise InvalidSetting("a delay needs a chance from 0 to 1 and a finite length; no fleet was drawn")

    def draw(self, num_devices: int, seed: int) -> Latency:
        rng = generator(seed, "device speeds")
        factors = np.array(self.factors)[_classes(self.shares, num_devices, rng)]
        ranges = np.array(self.mbps)[_classes(self.link_shares, num_devices, rng)]
        links = RangedLinks(ranges[:, 0], ranges[:, 1], seed)
        answers = np.zeros(num_devices)
        return Latency(seed, self.step_seconds, factors, links, answers, self.delay_chance, self.delay_seconds)


@dataclass(frozen=True)
class TracedSpeeds:
    """Measured phones and measured links, joined at random."""

    path: Path
    answer_seconds: float = 0.1
    step_seconds: float = 0.1

    def __post_init__(self) -> None:
        _check(self.step_seconds, (1.0,))
        _check_answer(self.answer_seconds)

    def draw(self, num_devices: int, seed: int) -> Latency:
        rng = generator(seed, "device speeds")
        measured, traces = read_compute_factors(self.path), read_bandwidths(self.path)
        factors = measured[rng.integers(len(measured), size=num_devices)]
        links = TracedLinks(traces, rng.integers(len(traces), size=num_devices), seed)
        return Latency(seed, self.step_seconds, factors, links, np.full(num_devices, self.answer_seconds))


def _classes(shares: Sequence[float], num_devices: int, rng: np.random.Generator) -> IntArray:
    """A class for each device; classes have their shares of the fleet, up to one device."""
    counts = apportion(np.array([shares]), np.array([num_devices]), rng.random(1))[0]
    return rng.permutation(np.repeat(np.arange(len(shares)), counts))


def _within(ranges: Sequence[Range], classes: IntArray, rng: np.random.Generator) -> FloatArray:
    low, high = np.array(ranges)[classes].T
    drawn: FloatArray = rng.uniform(low, high)
    return drawn


def _check(step_seconds: float, shares: Sequence[float], *ranges: Range) -> None:
    if not 0 <= step_seconds < math.inf:
        raise InvalidSetting(f"step_seconds must be at least 0, got {step_seconds}; no fleet was drawn")
    if not shares or min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise InvalidSetting(f"shares must be at least 0 and not all 0, got {shares}; no fleet was drawn")
    for low, high in ranges:
        if not 0 < low <= high < math.inf:
            raise InvalidSetting(f"a range goes from above 0 upwards, got {low} to {high}; no fleet was drawn")


def _check_answer(answer_seconds: float) -> None:
    if not 0 <= answer_seconds < math.inf:
        raise InvalidSetting(f"answer_seconds must be at least 0, got {answer_seconds}; no fleet was drawn")


def _check_length(*lengths: int) -> None:
    if len(set(lengths)) > 1:
        raise InvalidSetting(f"every class needs a share and its ranges, got {lengths} of them; no fleet was drawn")
