"""CFL (Sattler et al. 2021): a cohort that has converged on average while its devices pull apart is cut in two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from server_kit.clustering import CflCriterion, bipartition
from server_kit.formation.never import Never
from server_kit.formation.newcomers import to_largest
from server_kit.interfaces import Look, Split, Wants

if TYPE_CHECKING:
    import numpy as np

    from server_kit.interfaces import DeviceId, Federated, Memory, Seen


@dataclass(frozen=True)
class Bipartition(Never):
    """Looks at the last update of every member; with partial participation these differ in age.

    Norms depend on the model, so the criterion's two thresholds are shares of the largest norm in the first step
    unless `absolute`. `quorum` of the members must have been seen. `gamma_max` asks that the sides be unlike: at 0
    devices that are all alike are cut into a dozen cohorts.
    """

    mean_norm_below: float = 0.1
    largest_norm_above: float = 0.3
    after_round: int = 20
    least_members: int = 3
    gamma_max: float = 0.6
    quorum: float = 0.9
    absolute: bool = False
    sketch: int | None = None
    most_cohorts: int = 16

    @property
    def wants(self) -> Wants:
        return Wants(updates=True, sketch=self.sketch)

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        del rng
        federation.memory["assigned"] = dict.fromkeys(federation.fleet.waiting(0.0), "0")
        return None

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        del rng
        to_largest(newcomers, federation)

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        del rng
        latest = memory.setdefault("latest", {})
        latest.update(zip(seen.devices, seen.updates.unbind(), strict=True))
        if seen.devices and "scale" not in federation.memory:
            federation.memory["scale"] = 1.0 if self.absolute else float(seen.updates.norm(dim=1).max())
        members = [device for device in federation.members(seen.cohort) if device in latest]
        if len(members) < max(self.least_members, self.quorum * len(federation.members(seen.cohort))):
            return Look()
        updates = torch.stack([latest[device] for device in members])
        if len(federation.leaves) >= self.most_cohorts or not self._criterion(federation).holds(updates, seen.round):
            return Look()
        sides = bipartition(updates)
        if sides.count < 2 or not sides.evidence.separates(self.gamma_max):
            return Look()
        reason = "the cohort has converged, its devices have not"
        return Look(Split(seen.cohort, 2, dict(zip(members, sides.labels.tolist(), strict=True)), None, reason))

    def _criterion(self, federation: Federated) -> CflCriterion:
        scale: float = federation.memory["scale"]
        criterion = CflCriterion(after_round=self.after_round, min_members=self.least_members)
        return replace(
            criterion,
            mean_norm_below=self.mean_norm_below * scale,
            largest_norm_above=self.largest_norm_above * scale,
        )
