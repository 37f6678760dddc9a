"""Cohorts found at once, from what devices say about themselves: HACCS, FedGroup, FL+HC, and the oracle.

HACCS keeps one model and uses the clusters to choose devices; the others give each cluster a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from server_kit.clustering import Clustering
from server_kit.clustering.distances import unit_rows
from server_kit.clustering.kmeans import means_of
from server_kit.cohort_tree import ROOT
from server_kit.formation.never import Never
from server_kit.formation.summaries import AsTheyAre, wanted_summary
from server_kit.interfaces import Clusterer, Distance, Look, Split, Summarizer, Wants

if TYPE_CHECKING:
    from typing import Any

    from server_kit.interfaces import DeviceId, Federated, Memory, Seen, SummaryRequest

Rows = dict["DeviceId", torch.Tensor]


@dataclass(frozen=True)
class Founding(Never):
    """Ask devices, compare what they say, cluster; newcomers later join the nearest cluster.

    `use` "cohorts" splits the root; "selection" leaves one model and tells the selector. With `sample`, so many
    devices at most found the clusters and all others are newcomers. `start` "mean_update" begins each cohort at
    the mean of its founders' models, not at the root's. Once newcomers are `renew_at` of those who founded,
    clusters for selection are found anew; cohorts stay, because models hang on them.
    """

    summarizer: Summarizer
    clusterer: Clusterer
    distance: Distance = field(default_factory=AsTheyAre)
    use: Literal["cohorts", "selection"] = "cohorts"
    at_round: int = 0
    sample: int | None = None
    start: Literal["parent", "mean_update"] = "parent"
    likeness: Literal["cosine", "euclidean"] = "cosine"
    """How a newcomer is compared with the clusters' means."""
    renew_at: float = 0.1

    @property
    def wants(self) -> Wants:
        return Wants(**wanted_summary(self.summarizer))

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        if self.at_round > 0:
            return None
        return self._found(list(federation.fleet.waiting(0.0)), federation, rng)

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        del memory
        # Where nobody was there to found anything, the first step does.
        late = self.at_round == 0 and "founders" not in federation.memory
        due = seen.cohort == ROOT and (late or seen.round == self.at_round > 0)
        return Look(self._found(list(federation.memory.get("present", [])), federation, rng) if due else None)

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        if "founders" not in federation.memory:
            federation.memory.setdefault("present", []).extend(newcomers)
            return
        unknown = [device for device in newcomers if device not in federation.memory["rows"]]
        rows = dict(federation.fleet.summaries(self._request(federation), newcomers))
        if self.use == "cohorts":
            self._assign(rows, federation)
            return
        federation.memory["rows"].update(rows)
        if len(federation.memory["rows"]) - federation.memory["founders"] >= max(
            1.0, self.renew_at * federation.memory["founders"]
        ) or len(unknown) < len(newcomers):
            self._cluster(federation.memory["rows"], federation, rng)
        else:
            self._assign(rows, federation)

    def _found(self, devices: list[DeviceId], federation: Federated, rng: np.random.Generator) -> Split | None:
        memory = federation.memory
        memory["start"] = federation.model(ROOT).clone()
        if self.sample is not None and len(devices) > self.sample:
            devices = [devices[index] for index in sorted(rng.choice(len(devices), self.sample, replace=False))]
        rows = dict(federation.fleet.summaries(self._request(federation), devices))
        if not rows:
            return None
        found = self._cluster(rows, federation, rng)
        if self.use == "selection":
            memory["rows"] = rows
            return None
        memory["rows"] = {}
        if found.count < 2:
            memory["assigned"] = dict.fromkeys(rows, ROOT)
            return None
        means: torch.Tensor = memory["means"]
        models = [memory["start"] + mean for mean in means] if self.start == "mean_update" else None
        members = dict(zip(rows, found.labels.tolist(), strict=True))
        return Split(ROOT, found.count, members, models, f"{found.count} groups among {len(rows)} devices")

    def _request(self, federation: Federated) -> SummaryRequest:
        return self.summarizer.request(federation.memory["start"], federation.task)

    def _cluster(self, rows: Rows, federation: Federated, rng: np.random.Generator) -> Clustering[Any]:
        stacked = torch.stack(list(rows.values()))
        points = self.distance.compare(stacked, self._request(federation).noise_scale)
        found = self.clusterer.cluster(points, rng)
        memory = federation.memory
        memory["founders"] = len(rows)
        memory["means"] = means_of(stacked.float().flatten(1), torch.from_numpy(found.labels))
        if self.use == "selection":
            memory["clusters"] = dict(zip(rows, found.labels.tolist(), strict=True))
        return found

    def _assign(self, rows: Rows, federation: Federated) -> None:
        """Each of these to the cluster whose mean it is most like."""
        memory = federation.memory
        for device, row in rows.items():
            nearest = self._nearest(row.float().flatten(), memory["means"])
            if self.use == "selection":
                memory["clusters"][device] = nearest
            elif len(memory["means"]) > 1:
                memory.setdefault("assigned", {})[device] = f"{ROOT}.{nearest}"

    def _nearest(self, row: torch.Tensor, means: torch.Tensor) -> int:
        if self.likeness == "cosine":
            return int((unit_rows(means) @ row).argmax())
        return int((means - row).norm(dim=1).argmin())
