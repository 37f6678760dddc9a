"""Parts for federations under test: an aggregator that adds up, and formations that split, merge and ask on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from server_kit.formation.never import Never
from server_kit.interfaces import Look, Memory, Merge, Seen, Split, SummaryRequest, Updates


@dataclass(frozen=True)
class Sum:
    """w ← w + Σ Δᵢ, late ones like all others: what was folded, and how often, can be read off the model."""

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        total = model.clone()
        for update in updates:
            total += update.delta
        return total


@dataclass(frozen=True)
class Hoard:
    """Has all updates in memory before it adds them up."""

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        held = list(updates)
        return sum((update.delta for update in held), model.clone())


@dataclass(frozen=True)
class SplitsAndMerges(Never):
    """Splits the root after every third step of one cohort, and merges the children after every fifth step of all.

    The merged model has what either child has: each update stands in a coordinate of its own.
    """

    def look(self, seen: Seen, memory: Memory, federation: Any, rng: np.random.Generator) -> Look:
        del memory, rng
        if len(federation.leaves) == 1 and seen.round % 3 == 0:
            members = {device: int(device[-1], 16) % 2 for device in seen.devices}
            return Look(Split(seen.cohort, 2, members, reason="the third step"))
        if len(federation.leaves) > 1 and federation.steps % 5 == 0:
            merged = federation.model(federation.leaves[0])
            for leaf in federation.leaves:
                merged = torch.maximum(merged, federation.model(leaf))
            return Look(Merge("0", merged, "the fifth step"))
        return Look()


@dataclass(frozen=True)
class AsksNewcomers(Never):
    """Has every newcomer train once before it takes part, and learns nothing from it."""

    def welcome(self, newcomers: Sequence[str], federation: Any, rng: np.random.Generator) -> None:
        del rng
        task = replace(federation.task, halves=False)
        federation.fleet.summaries(SummaryRequest("update", model=federation.model("0"), task=task), newcomers)
