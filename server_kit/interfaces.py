"""Every extension point of the server, side by side, and the few nouns that flow between them.

A federation is a choice of parts: how devices are summarised, clustered, split, matched, selected, trained
and aggregated. A part holds settings and no state. What it must remember about a cohort stands in a `Memory`
that comes in by argument, so that calls need no secret order, a cohort can be copied when it splits, and the
engine can put everything into a checkpoint. Chance comes in by argument too: the same seed, the same run.

Models are flat float32 vectors on a torch device; `w` is a model, `Δ = w_i − w` an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch

DeviceId = str
CohortId = str
"""The path from the root, e.g. `0.1.0`: the root is `0`, its children `0.0`, `0.1`, …"""
Memory = dict[str, Any]
"""What a part remembers about one cohort: JSON values and tensors, owned and checkpointed by the engine."""


@dataclass(frozen=True)
class DeviceView:
    """What the server knows about a waiting device. None is "never heard", not zero."""

    device: DeviceId
    latency_seconds: float | None = None
    loss: float | None = None
    samples: int | None = None
    participations: int = 0
    last_round: int | None = None
    cluster: int | None = None


@dataclass(frozen=True)
class Update:
    """One device's contribution: how it would change the model version it was handed."""

    device: DeviceId
    delta: torch.Tensor
    base_version: int = 0
    staleness: int = 0
    weight: float = 1.0
    loss: float | None = None
    steps: int = 0
    base: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    halves: tuple[torch.Tensor, torch.Tensor] | None = None


class Updates(Protocol):
    """A round's updates, streamed: each pass reads them anew, so that memory does not grow with their number."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Update]: ...


@dataclass(frozen=True)
class RoundOutcome:
    """What became of a round: who was asked, who arrived in time, how long it took."""

    round: int
    selected: tuple[DeviceId, ...]
    arrived: tuple[DeviceId, ...]
    duration_seconds: float
    losses: Mapping[DeviceId, float] = field(default_factory=dict)
    latencies_seconds: Mapping[DeviceId, float] = field(default_factory=dict)
    accuracy: float | None = None


class Selector(Protocol):
    """Chooses which waiting devices train next."""

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        """At most `count` different devices among `waiting`; all of them if there are no more."""

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        """Learn from how the round went."""


class Aggregator(Protocol):
    """Folds one round of updates, or one late one, into the next model."""

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        """The next model; `model` itself is left alone. Without updates it stays as it is."""
