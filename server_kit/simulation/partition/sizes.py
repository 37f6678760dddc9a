"""How many samples devices have, relative to each other or in absolute numbers.

A rule gives weights, one for each device. With `mean_samples` these become numbers of samples with that mean;
without, devices get as many as the data set can give without handing any sample out twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.ragged import FloatArray, IntArray


class Sizes(Protocol):
    """The shape of the distribution of samples over devices."""

    @property
    def mean_samples(self) -> float | None: ...

    @property
    def least(self) -> int:
        """No device gets fewer."""

    def weights(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        """Positive numbers with mean 1."""


@dataclass(frozen=True)
class Equal:
    """The same for all, up to one sample."""

    mean_samples: float | None = None
    least: int = 1

    def __post_init__(self) -> None:
        _check(self.mean_samples, self.least)

    def weights(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        return np.ones(num_devices)


@dataclass(frozen=True)
class LogNormal:
    """Most have few, some have many: exp of a normal with deviation `sigma`."""

    sigma: float = 1.0
    mean_samples: float | None = None
    least: int = 1

    def __post_init__(self) -> None:
        _check(self.mean_samples, self.least)
        if not 0 <= self.sigma < math.inf:
            raise InvalidSetting(f"sigma must be at least 0, got {self.sigma}; nothing was dealt")

    def weights(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        return _mean_one(np.exp(self.sigma * rng.standard_normal(num_devices)))


@dataclass(frozen=True)
class PowerLaw:
    """P(size > s) falls as s^-exponent; the smaller the exponent, the heavier the tail."""

    exponent: float = 2.0
    mean_samples: float | None = None
    least: int = 1

    def __post_init__(self) -> None:
        _check(self.mean_samples, self.least)
        if not 0 < self.exponent < math.inf:
            raise InvalidSetting(f"exponent must be above 0, got {self.exponent}; nothing was dealt")

    def weights(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        return _mean_one(1 + rng.pareto(self.exponent, num_devices))


@dataclass(frozen=True)
class GivenSizes:
    """Exactly these numbers, one for each device in order."""

    samples: tuple[int, ...]
    least: int = 1

    def __post_init__(self) -> None:
        if not self.samples or min(self.samples) < 1:
            raise InvalidSetting("given sizes must be at least 1 each; nothing was dealt")

    @property
    def mean_samples(self) -> float:
        return sum(self.samples) / len(self.samples)

    def weights(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        if num_devices != len(self.samples):
            raise InvalidSetting(f"{len(self.samples)} sizes were given for {num_devices} devices; nothing was dealt")
        return _mean_one(np.array(self.samples, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class DrawnSizes:
    """Drawn from the numbers of samples of real devices, with replacement."""

    observed: IntArray
    mean_samples: float | None = None
    least: int = 1

    def __post_init__(self) -> None:
        _check(self.mean_samples, self.least)
        if self.observed.ndim != 1 or self.observed.size == 0 or self.observed.min() < 1:
            raise InvalidSetting("observed sizes must be at least 1 each; nothing was dealt")

    def weights(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        return _mean_one(rng.choice(self.observed, num_devices).astype(np.float64))


def _check(mean_samples: float | None, least: int) -> None:
    if mean_samples is not None and not 1 <= mean_samples < math.inf:
        raise InvalidSetting(f"mean_samples must be at least 1, got {mean_samples}; nothing was dealt")
    if least < 1:
        raise InvalidSetting(
            f"every device needs a sample, so least must be at least 1, got {least}; nothing was dealt"
        )


def _mean_one(values: FloatArray) -> FloatArray:
    scaled: FloatArray = values / values.mean()
    return scaled
