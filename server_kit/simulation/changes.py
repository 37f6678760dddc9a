"""What happens to a fleet while it trains: devices join, data change, and some devices lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.chance import generator
from server_kit.simulation.ragged import BoolArray
from server_kit.simulation.transforms import Transform, next_label, swapped_pairs


@dataclass(frozen=True)
class Newcomers:
    """A share of the devices is not there before `at_round`."""

    share: float
    at_round: int

    def __post_init__(self) -> None:
        check_share(self.share)
        _check_round(self.at_round)


@dataclass(frozen=True)
class Shift:
    """From `at_round` on a share of the devices sees its data turned further, or label y as y + `label_shift`."""

    share: float
    at_round: int
    rotation_degrees: float = 0.0
    label_shift: int = 0

    def __post_init__(self) -> None:
        check_share(self.share)
        _check_round(self.at_round)
        if self.rotation_degrees % 360 == 0 and self.label_shift == 0:
            raise InvalidSetting("a shift must turn images or move labels; no population was made")

    def transform(self, num_classes: int) -> Transform:
        """What is added to how the device saw its data before."""
        return Transform(self.rotation_degrees).then(next_label(num_classes, self.label_shift))


@dataclass(frozen=True)
class LabelFlip:
    """A share of the devices trains on wrong labels: y + 1 (`next`), or 0 for 1 and 1 for 0 and so on (`pairs`).

    Their test samples stay right, and so does their true group: it is the devices that lie, not the data.
    """

    share: float
    rule: Literal["next", "pairs"] = "next"

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.rule not in {"next", "pairs"}:
            raise InvalidSetting(f"rule is 'next' or 'pairs', not {self.rule!r}; no population was made")

    def transform(self, num_classes: int) -> Transform:
        """What an attacker does to its labels."""
        return next_label(num_classes) if self.rule == "next" else swapped_pairs(num_classes)


def chosen(share: float, num_devices: int, seed: int, purpose: str) -> BoolArray:
    """Which devices it hits: a random set of this share of them, to the nearest device."""
    hit = np.zeros(num_devices, dtype=bool)
    hit[generator(seed, purpose).permutation(num_devices)[: round(share * num_devices)]] = True
    return hit


def check_share(share: float) -> None:
    """Raise unless this is a share."""
    if not 0 <= share <= 1:
        raise InvalidSetting(f"a share must be from 0 to 1, got {share}; no population was made")


def _check_round(at_round: int) -> None:
    if at_round < 0:
        raise InvalidSetting(f"at_round must be at least 0, got {at_round}; no population was made")
