"""Auxo's verdict on a round's participants: how well each fitted, and who claims to fit but does not.

    ΔRᵢ = 1 − Dᵢ / (avg(D) + b·std(D)),   Dᵢ = ‖Gᵢ − centre of the known members‖

A negative ΔR marks an outlier. One strike costs the claim, several in a few participations the place in the
cohort for a while: honest devices drift, so a single bad round proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from server_kit.interfaces import DeviceId, Memory

FEWEST_KNOWN = 2


def reward_changes(sketches: torch.Tensor, known: Sequence[bool], b: float = 1.0) -> list[float] | None:
    """ΔR of each participant (a row each); None while fewer than two members are known to belong here."""
    members = [index for index, belongs in enumerate(known) if belongs]
    if len(members) < FEWEST_KNOWN:
        return None
    rows = sketches.double()
    distances = (rows - rows[members].mean(dim=0)).norm(dim=1)
    usual = float(distances.mean() + b * distances.std(correction=0))
    if usual == 0.0:
        # All alike: everyone fits perfectly.
        return [1.0] * len(rows)
    changes: list[float] = (1 - distances / usual).tolist()
    return changes


@dataclass(frozen=True)
class Strikes:
    """Who may no longer be believed. A strike: a claimed affinity above 0 and a ΔR below −`severity`.

    `most` strikes within the last `window` participations ban a device for `ban_rounds` rounds.
    """

    severity: float = 1.0
    most: int = 3
    window: int = 5
    ban_rounds: int = 50

    def judge(
        self, device: DeviceId, claimed_reward: float, reward_change: float, round_number: int, memory: Memory
    ) -> bool:
        """Note one participation; True if it was a strike."""
        strike = claimed_reward > 0 and reward_change < -self.severity
        history = memory.setdefault("strikes", {})
        history[device] = [*history.get(device, []), int(strike)][-self.window :]
        if sum(history[device]) >= self.most:
            memory.setdefault("banned_until", {})[device] = round_number + self.ban_rounds
            history[device] = []
        return strike

    def banned(self, device: DeviceId, round_number: int, memory: Memory) -> bool:
        """Whether the device must wait; a ban that has run out is forgotten."""
        until = memory.get("banned_until", {}).get(device)
        if until is not None and round_number >= until:
            del memory["banned_until"][device]
            return False
        return until is not None
