"""What a federation is made of: the plan, which stays, and the state, which a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from server_kit.cohort_tree import CohortTree
from server_kit.interfaces import CheckIn, CohortId, DeviceId, DeviceView, Memory
from server_kit.round import CohortState

if TYPE_CHECKING:
    from server_kit.layout import Layout
    from server_kit.local_task import LocalTask
    from server_kit.strategy import Strategy


@dataclass
class FederationState:
    """Everything that a checkpoint must hold."""

    tree: CohortTree
    cohorts: dict[CohortId, CohortState]
    memory: Memory = field(default_factory=dict)
    """What structure and shared selection remember."""
    views: dict[DeviceId, DeviceView] = field(default_factory=dict)
    claims: dict[DeviceId, CheckIn] = field(default_factory=dict)
    """What each device said when it was last asked to train."""
    out: dict[DeviceId, CohortId] = field(default_factory=dict)
    """Where the answer of a device that was asked belongs."""
    steps: int = 0
    """Folds of all cohorts."""
    suggested: dict[DeviceId, CohortId] = field(default_factory=dict)
    """Where the latest splits put devices."""
    sated: set[CohortId] = field(default_factory=set)
    """Leaves that have asked all they could; there is no use in asking again before something happens."""


@dataclass(frozen=True)
class Plan:
    """What does not change while a federation runs."""

    strategy: Strategy
    task: LocalTask
    layout: Layout
    participants: int
    fresh_model: Callable[[int], torch.Tensor]
    seed: int = 0
    check_ins: int = 2000
    """At most so many waiting devices are looked at when a leaf chooses: a sample is as good as all."""
    compute: str = "cpu"
    """Where models lie while they are worked with."""
