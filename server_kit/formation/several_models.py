"""IFCA: several models from the start, and devices that choose among them (Ghosh et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.cohort_tree import ROOT
from server_kit.errors import InvalidSetting
from server_kit.formation.never import Never
from server_kit.interfaces import Split

if TYPE_CHECKING:
    import numpy as np

    from server_kit.interfaces import Federated


@dataclass(frozen=True)
class SeveralModels(Never):
    """`models` random starts. Where all devices choose the same one, the others never learn: try other seeds."""

    models: int = 4

    def __post_init__(self) -> None:
        if self.models < 2:
            raise InvalidSetting(f"a choice needs at least 2 models, got {self.models}; nothing was started")

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        del rng
        starts = [federation.fresh_model(number) for number in range(self.models)]
        return Split(ROOT, self.models, models=starts, reason=f"{self.models} models to choose from")
