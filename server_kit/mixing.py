"""What cohorts learn from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from server_kit.interfaces import CohortId


@dataclass(frozen=True)
class InterGroup:
    """FedGroup: every group takes a little of the direction of all others.

    w_j ← (w_j + η·Σ_l w_l/‖w_l‖)/(1 + η·Σ_l 1/‖w_l‖) over l ≠ j; without `normalised` the divisor is left out,
    as the paper prints it.
    """

    rate: float = 0.01
    normalised: bool = True

    def mixed(self, models: Mapping[CohortId, torch.Tensor]) -> Mapping[CohortId, torch.Tensor]:
        if len(models) < 2 or self.rate == 0:
            return models
        norms = {cohort: float(model.double().norm()) for cohort, model in models.items()}
        units = {cohort: model.double() / norms[cohort] for cohort, model in models.items() if norms[cohort] > 0}
        total = torch.stack(list(units.values())).sum(dim=0) if units else 0.0
        inverse = sum(1 / norm for norm in norms.values() if norm > 0)
        mixed = {}
        for cohort, model in models.items():
            own = units.get(cohort, 0.0)
            divisor = 1 + self.rate * (inverse - (1 / norms[cohort] if norms[cohort] > 0 else 0.0))
            moved = model.double() + self.rate * (total - own)
            mixed[cohort] = (moved / divisor if self.normalised else moved).to(model.dtype)
        return mixed
