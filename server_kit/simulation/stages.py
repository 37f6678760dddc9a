"""How each device sees its samples before and after each shift of the data, for training and for testing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server_kit.simulation.partition.assignment import Partition
from server_kit.simulation.ragged import BoolArray, IntArray
from server_kit.simulation.transforms import Transform


@dataclass(frozen=True, eq=False)
class Change:
    """From a round on, some devices see their data through one more transform."""

    at_round: int
    who: BoolArray
    transform: Transform


@dataclass(frozen=True, eq=False)
class Stages:
    """Stage 0 is the beginning; each round in which data shift opens the next one.

    Arrays have the shape [stages, devices] and hold numbers of `transforms`.
    """

    begins_at_round: tuple[int, ...]
    transforms: tuple[Transform, ...]
    world: IntArray
    """As the samples are: what a device is tested on."""
    claimed: IntArray
    """As the device trains on them: attackers have changed the labels."""

    @classmethod
    def of(cls, dealt: Partition, shifts: Sequence[Change], attack: Change | None) -> Stages:
        """The stages of a partition under these shifts, with some devices lying all the time."""
        numbering = _Numbering(dealt.transforms)
        first = dealt.transform_of
        world = [np.zeros(len(dealt), dtype=np.int64) if first is None else first]
        rounds = sorted({shift.at_round for shift in shifts})
        for at_round in rounds:
            now = world[-1]
            for shift in shifts:
                now = numbering.after(now, shift) if shift.at_round == at_round else now
            world.append(now)
        claimed = world if attack is None else [numbering.after(now, attack) for now in world]
        return cls((0, *rounds), numbering.transforms, np.stack(world), np.stack(claimed))

    def stage(self, round_number: int) -> int:
        """The stage that this round is in."""
        return max(0, bisect_right(self.begins_at_round, round_number) - 1)

    def groups(self, by_samples: IntArray | None) -> IntArray:
        """[stages, devices]: devices alike in their choice of samples and in how they see them.

        Numbered over all stages at once, so that a group keeps its number while others move.
        """
        keys = self.world if by_samples is None else by_samples * (self.world.max() + 1) + self.world
        return np.unique(keys, return_inverse=True)[1].reshape(keys.shape)


class _Numbering:
    """Transforms as small numbers, equal ones the same."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._number = {transform: number for number, transform in enumerate(transforms)}

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(self._number)

    def after(self, numbers: IntArray, change: Change) -> IntArray:
        changed = numbers.copy()
        for number in np.unique(numbers[change.who]):
            seen = self.transforms[int(number)].then(change.transform)
            changed[change.who & (numbers == number)] = self._number.setdefault(seen, len(self._number))
        return changed
