"""CASA: asynchronous arrivals are buffered, and a cohort is split where the spectrum of their likeness asks for it.

A reconstruction: CASA is published as slides. What they leave open is decided here and in
`clustering.buffered_spectral`, and said in docs/decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from server_kit.clustering import Buffered, Clustering, SpectralSplit, affinity, comparable_updates, cosine_similarity
from server_kit.cohort_tree import ROOT
from server_kit.formation.never import Never
from server_kit.formation.newcomers import to_largest
from server_kit.interfaces import Look, Split, Wants

if TYPE_CHECKING:
    from typing import Any

    import numpy as np

    from server_kit.interfaces import CohortId, DeviceId, Federated, Memory, Seen


@dataclass(frozen=True)
class Spectral(Never):
    """Splits when every member has sent something and the mixing rate α is below gap^γ.

    Looks at most once for each |C| arrivals. `quorum` below 1 does not wait for the slowest members. A newcomer
    joins the cohort whose buffered updates are most like its first one, and until then the largest.
    """

    splitter: SpectralSplit = field(default_factory=SpectralSplit)
    exponent: float = 1.0
    kept: int = 5
    quorum: float = 1.0
    sketch: int | None = 512
    most_cohorts: int = 16

    @property
    def wants(self) -> Wants:
        return Wants(updates=True, sketch=self.sketch)

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        del rng
        federation.memory["assigned"] = dict.fromkeys(federation.fleet.waiting(0.0), ROOT)
        return None

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        del rng
        new = [device for device in newcomers if device not in federation.memory.get("assigned", {})]
        to_largest(new, federation)
        if len(federation.leaves) > 1:
            federation.memory.setdefault("new", {}).update(dict.fromkeys(new, True))

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        buffers = memory.setdefault("buffers", {})
        for device, version, update in zip(seen.devices, seen.versions, seen.updates.unbind(), strict=True):
            if federation.memory.get("new", {}).pop(device, False):
                _settle(device, update, federation)
            buffers[device] = [*buffers.get(device, []), {"version": version, "update": update}][-self.kept :]
        memory["since"] = memory.get("since", 0) + len(seen.devices)
        members = federation.members(seen.cohort)
        heard = [device for device in members if device in buffers]
        if memory["since"] < len(members) or len(heard) < self.quorum * len(members) or len(heard) < 2:
            return Look()
        memory["since"] = 0
        buffered = [[Buffered(**entry) for entry in buffers[device]] for device in heard]
        found = self.splitter.cluster(affinity(comparable_updates(buffered)), rng)
        if found.count < 2 or len(federation.leaves) + found.count - 1 > self.most_cohorts:
            return Look()
        if seen.mixing_rate is not None and not found.evidence.outweighs(seen.mixing_rate, self.exponent):
            return Look()
        return Look(self._split(seen.cohort, heard, found))

    def _split(self, cohort: CohortId, heard: list[DeviceId], found: Clustering[Any]) -> Split:
        members = dict(zip(heard, found.labels.tolist(), strict=True))
        return Split(cohort, found.count, members, None, f"eigengap {found.evidence.gap:.2f} at {found.count}")


def _settle(device: DeviceId, update: torch.Tensor, federation: Federated) -> None:
    """Move a newcomer to the cohort whose latest updates have the highest mean cosine with its first one."""
    latest = {
        leaf: [entries[-1]["update"] for entries in federation.clustering(leaf).get("buffers", {}).values()]
        for leaf in federation.leaves
    }
    scores = {
        leaf: float(cosine_similarity(torch.stack([update, *rows]))[0, 1:].mean())
        for leaf, rows in latest.items()
        if rows
    }
    if scores:
        federation.memory["assigned"][device] = max(scores, key=lambda leaf: scores[leaf])
