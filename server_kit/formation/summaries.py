"""What devices are asked about themselves, and how the answers are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from privacy.budget import NeighbouringRelation
from server_kit.clustering import AverageHellingerRows, Estimator, HistogramDistance, denoised, histogram_points
from server_kit.errors import InvalidSetting
from server_kit.interfaces import SummaryRequest

if TYPE_CHECKING:
    from server_kit.clustering import DistanceRows
    from server_kit.local_task import LocalTask


def wanted_summary(summarizer: object) -> dict[str, Any]:
    """What a formation with this summarizer wants of devices, as `Wants` has it."""
    return {
        "summary": getattr(summarizer, "mechanism", ""),
        "summary_bins": getattr(summarizer, "bins", 0),
        "summary_epsilon": getattr(summarizer, "epsilon", None) or 0.0,
    }


@dataclass(frozen=True)
class LabelHistograms:
    """P(y): counts of labels with discrete-Laplace noise for `epsilon`; None without noise, in simulations."""

    epsilon: float | None = 0.1
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    mechanism: ClassVar[Literal["label_histogram"]] = "label_histogram"

    def __post_init__(self) -> None:
        _check(self.epsilon)

    def request(self, model: torch.Tensor, usual: LocalTask) -> SummaryRequest:
        del model, usual
        return SummaryRequest(self.mechanism, self.epsilon, NeighbouringRelation(self.relation))


@dataclass(frozen=True)
class FeatureHistograms:
    """P(X|y): for each label a histogram of its records' features; a record has mass 1 in all."""

    epsilon: float | None = 0.1
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    bins: int = 16
    mechanism: ClassVar[Literal["feature_histogram"]] = "feature_histogram"

    def __post_init__(self) -> None:
        _check(self.epsilon)

    def request(self, model: torch.Tensor, usual: LocalTask) -> SummaryRequest:
        del model, usual
        return SummaryRequest(self.mechanism, self.epsilon, NeighbouringRelation(self.relation), self.bins)


@dataclass(frozen=True)
class FirstUpdates:
    """The update of some training from the model as it is: FedGroup's pre-training, FL+HC's one full round.

    `epochs` None: as the task of a usual round has it.
    """

    epochs: int | None = 1

    def request(self, model: torch.Tensor, usual: LocalTask) -> SummaryRequest:
        task = replace(usual, proximal=0.0, halves=False)
        if self.epochs is not None:
            task = replace(task, epochs=self.epochs, steps=None)
        return SummaryRequest("update", model=model, task=task)


@dataclass(frozen=True)
class TrueGroups:
    """The oracle: the group that the simulator put each device in."""

    def request(self, model: torch.Tensor, usual: LocalTask) -> SummaryRequest:
        del model, usual
        return SummaryRequest("truth")


@dataclass(frozen=True)
class AsTheyAre:
    """Points as devices sent them."""

    def compare(self, summaries: torch.Tensor, noise_scale: float | None) -> torch.Tensor:
        del noise_scale
        return summaries.float()


@dataclass(frozen=True)
class Histograms:
    """Label histograms by Hellinger or L2 distance; noised ones by what they say about the true ones.

    `denoise` False sets negative counts to zero instead, as HACCS does.
    """

    distance: HistogramDistance = HistogramDistance.HELLINGER
    denoise: bool = True

    def compare(self, summaries: torch.Tensor, noise_scale: float | None) -> torch.Tensor:
        counts = summaries if noise_scale is None else summaries.round().long()
        estimator = None if self.denoise else Estimator.CLIP
        return histogram_points(counts, HistogramDistance(self.distance), noise_scale, estimator).points


@dataclass(frozen=True)
class FeatureTables:
    """P(X|y) by the Hellinger distance averaged over labels: a table is label by bin, in shares of records."""

    denoise: bool = True

    def compare(self, summaries: torch.Tensor, noise_scale: float | None) -> DistanceRows:
        devices, labels, bins = summaries.shape
        if noise_scale is None:
            return AverageHellingerRows(summaries)
        flat = summaries.round().long().view(devices, -1)
        counts = denoised(flat, noise_scale, None if self.denoise else Estimator.CLIP)
        return AverageHellingerRows(counts.view(devices, labels, bins))


def _check(epsilon: float | None) -> None:
    if epsilon is not None and not epsilon > 0:
        raise InvalidSetting(f"epsilon is above 0, got {epsilon}; nothing was started")
