"""What devices minimise: their loss, their loss without straying far, or their loss in part of the weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from server_kit.aggregation import CasaDecay
from server_kit.errors import InvalidSetting

if TYPE_CHECKING:
    from server_kit.interfaces import DeviceView, Trained
    from server_kit.layout import Layout
    from server_kit.local_task import LocalTask


@dataclass(frozen=True)
class Plain:
    """The usual task, as the experiment or the operator set it."""

    def task_for(self, usual: LocalTask, view: DeviceView, cohort: Trained) -> LocalTask:
        del view, cohort
        return usual


@dataclass(frozen=True)
class Proximal:
    """FedProx: loss + (μ/2)·‖w − start‖² (Li et al. 2020)."""

    mu: float = 1.0

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise InvalidSetting(f"mu is 0 or more, got {self.mu}; nothing was started")

    def task_for(self, usual: LocalTask, view: DeviceView, cohort: Trained) -> LocalTask:
        del view, cohort
        return replace(usual, proximal=self.mu)


@dataclass(frozen=True)
class SparseMasked:
    """CASA+: a device that will be late trains fewer weights, those that matter most.

    How late is guessed from its last answer. Biases and the first layer stay dense; in the others the weights
    of largest magnitude are kept, layer by layer.
    """

    aggregator: CasaDecay = field(default_factory=CasaDecay)
    """The same as the cohort's: its decay says how much a late answer would count."""
    most: float = 0.5
    steps: int = 8
    """Rates are rounded down to so many levels, so that devices with equal masks train side by side."""

    def task_for(self, usual: LocalTask, view: DeviceView, cohort: Trained) -> LocalTask:
        seen: list[int] = cohort.aggregation.get("staleness", [])
        expected = view.staleness if view.staleness is not None else round(sum(seen) / len(seen)) if seen else 0
        rate = self.aggregator.sparse_rate(expected, cohort.aggregation, self.most)
        level = int(rate / self.most * self.steps) if self.most > 0 else 0
        if level == 0:
            return usual
        return replace(usual, mask=magnitude_mask(cohort.layout, cohort.model, level * self.most / self.steps))


def magnitude_mask(layout: Layout, model: torch.Tensor, rate: float) -> torch.Tensor:
    """True where a coordinate is trained: all but the `rate` smallest weights of each layer after the first."""
    mask = torch.ones(layout.size, dtype=torch.bool, device=model.device)
    matrices = [(start, stop) for start, stop, shape in layout.places.values() if len(shape) > 1]
    for start, stop in matrices[1:]:
        dropped = int(rate * (stop - start))
        if dropped:
            smallest = model[start:stop].abs().topk(dropped, largest=False, sorted=False).indices
            mask[start + smallest] = False
    return mask
