"""What noised histograms say about the true ones. All of it is post-processing: it costs no privacy.

A device sends integers with discrete-Laplace noise of a known scale, P(noise = z) ∝ e^(−|z|/scale). Setting
negative counts to zero, as HACCS does, keeps half of the noise of every empty bin, and the square root of
Hellinger's distance amplifies it. Knowing the noise, the posterior mean of √count removes most of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.checks import require_finite, require_rows
from server_kit.clustering.distances import Distances
from server_kit.errors import InvalidSetting, InvalidSummary

Table = npt.NDArray[np.float64]


class Estimator(StrEnum):
    """How counts are guessed from noised counts; recorded with the cohorts that come of it."""

    CLIP = "clip"
    """Negative counts are zero."""
    SIMPLEX = "simplex"
    """The nearest non-negative counts with the same total (norm-sub)."""
    POSTERIOR = "posterior"
    """The expected √count under a fixed public prior, squared."""


def estimator_for(scale: float) -> Estimator:
    """Which estimator suits noise of this scale (1/ε, or 2/ε where records are replaced).

    Below half a record (ε above 2) there is nothing to remove and a prior only bends the counts.
    """
    return Estimator.CLIP if scale < 0.5 else Estimator.POSTERIOR


def denoised(noised: torch.Tensor, scale: float, estimator: Estimator | None = None) -> torch.Tensor:
    """Non-negative counts (float32) that stand for the true ones; `estimator_for(scale)` if none is named."""
    counts = require_noised(noised, scale)
    match estimator or estimator_for(scale):
        case Estimator.CLIP:
            return counts.clamp_min(0).float()
        case Estimator.SIMPLEX:
            return projected(counts)
        case Estimator.POSTERIOR:
            return PosteriorRoots(scale).of(counts).square()


def require_noised(noised: torch.Tensor, scale: float) -> torch.Tensor:
    """Whole counts, one row for each device, and a scale that a noise can have."""
    if not 0 < scale < math.inf:
        raise InvalidSetting(f"noise has a scale above 0, got {scale:g}; nothing was computed")
    require_rows(noised, "histograms")
    require_finite(noised, "histograms")
    if noised.is_floating_point() and bool((noised != noised.round()).any()):
        raise InvalidSummary(
            "noised counts are whole numbers; ask devices for what they released; nothing was computed"
        )
    return noised.long()


def projected(counts: torch.Tensor) -> torch.Tensor:
    """Each row moved to the nearest non-negative one with the same total, or with a total of 1 if it was below."""
    wide = counts.double()
    total = wide.sum(dim=1, keepdim=True).clamp_min(1)
    descending = wide.sort(dim=1, descending=True).values
    # The excess over the total, shared among the j largest: j is right as long as all of them stay positive.
    share = (descending.cumsum(dim=1) - total) / torch.arange(1, counts.shape[1] + 1, device=counts.device)
    kept = (descending > share).sum(dim=1, keepdim=True).clamp_min(1)
    return (wide - share.gather(1, kept - 1)).clamp_min(0).float()


@dataclass(frozen=True)
class PosteriorRoots:
    """E[√c | noised count] under a public prior: zero with probability `zero`, else ∝ 1/(c + 5) up to `largest`.

    The prior suits sparse histograms and is fixed beforehand: fitted to what devices sent, it would be a
    second use of their data.
    """

    scale: float
    zero: float = 0.6
    largest: int = 1_000_000

    def __post_init__(self) -> None:
        if not (0 < self.zero < 1 and self.largest >= 1):
            raise InvalidSetting("a prior needs 0 < zero < 1 and a largest count of at least 1; nothing was computed")

    def of(self, noised: torch.Tensor) -> torch.Tensor:
        """The expected root for each noised count."""
        highest = int(noised.max().clamp(0, self.largest))
        table = torch.tensor(self.table()[: highest + 1], dtype=torch.float32, device=noised.device)
        # Every count from 0 to `largest` is equally far, up to a factor, from all that lies outside.
        return table[noised.clamp(0, self.largest)]

    @lru_cache(maxsize=4)  # noqa: B019  # few scales in a process
    def table(self) -> Table:
        """The expected root for each noised count from 0 to `largest`; shared, so not to be written to."""
        count = np.arange(self.largest + 1, dtype=np.float64)
        prior = 1 / (count + 5)
        prior[0] = 0
        prior *= (1 - self.zero) / prior.sum()
        prior[0] = self.zero
        table: Table = self._weighed(prior * np.sqrt(count)) / self._weighed(prior)
        table.flags.writeable = False
        return table

    def _weighed(self, weights: Table) -> Table:
        """Σ_c weights(c)·e^(−|z−c|/scale) for each z: one pass up and one pass down instead of all pairs."""
        from scipy.signal import lfilter

        recursion = [1.0, -math.exp(-1 / self.scale)]
        up, down = lfilter([1.0], recursion, weights), lfilter([1.0], recursion, weights[::-1])[::-1]
        weighed: Table = up + down - weights
        return weighed


@dataclass(frozen=True)
class UnbiasedCosineRows:
    """1 − cosine of the true counts, without bias: independent noise cancels in a product of two devices.

    Only in a device's product with itself it does not; there its known variance is taken off. A device whose
    noise outweighs its counts is like no other (distance 1).
    """

    noised: torch.Tensor
    scale: float

    def __post_init__(self) -> None:
        counts = require_noised(self.noised, self.scale).double()
        q = math.exp(-1 / self.scale)
        squares = counts.square().sum(dim=1) - counts.shape[1] * 2 * q / (1 - q) ** 2
        norms = squares.clamp_min(0).sqrt()
        scaled = torch.where(norms[:, None] > 0, counts / norms[:, None], 0)
        object.__setattr__(self, "noised", scaled)

    def __len__(self) -> int:
        return len(self.noised)

    def row(self, device: int) -> Distances:
        distances = 1 - (self.noised @ self.noised[device]).clamp(-1, 1)
        distances[device] = 0
        row: Distances = distances.cpu().numpy()
        return row
