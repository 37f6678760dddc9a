"""Where a device goes of which nothing is known yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.interfaces import CohortId, DeviceId, Federated


def to_largest(newcomers: Sequence[DeviceId], federation: Federated) -> CohortId:
    """Put those without a place into the cohort that has most members."""
    largest = max(federation.leaves, key=lambda leaf: len(federation.members(leaf)))
    assigned = federation.memory.setdefault("assigned", {})
    for device in newcomers:
        assigned.setdefault(device, largest)
    return largest
