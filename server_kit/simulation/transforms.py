"""How a device sees its samples differently from others: turned, or under other labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Inputs
from server_kit.simulation.ragged import IntArray
from server_kit.simulation.rotation import rotate


@dataclass(frozen=True)
class Transform:
    """First the images are turned counter-clockwise, then label y becomes `relabel[y]`. Equal ones compare equal."""

    rotation_degrees: float = 0.0
    relabel: tuple[int, ...] | None = None
    """A permutation of all labels, or None: they stay as they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rotation_degrees", self.rotation_degrees % 360.0)
        if self.relabel is not None:
            if sorted(self.relabel) != list(range(len(self.relabel))):
                raise InvalidSetting("relabel must name every label once; nothing was changed")
            if list(self.relabel) == sorted(self.relabel):
                object.__setattr__(self, "relabel", None)

    @property
    def is_identity(self) -> bool:
        """Whether samples stay as they are."""
        return self.rotation_degrees == 0 and self.relabel is None

    def inputs(self, x: Inputs) -> Inputs:
        """The inputs as the device sees them; the array itself where nothing turns."""
        return rotate(x, self.rotation_degrees) if self.rotation_degrees else x

    def labels(self, y: IntArray) -> IntArray:
        """The labels as the device sees them."""
        return y if self.relabel is None else np.array(self.relabel, dtype=np.int64)[y]

    def then(self, later: Transform) -> Transform:
        """Both, one after the other, as one: two turns by 45° blend pixels once."""
        if self.relabel is None or later.relabel is None:
            relabel = self.relabel or later.relabel
        elif len(self.relabel) != len(later.relabel):
            raise InvalidSetting("two relabellings differ in their number of labels; nothing was changed")
        else:
            relabel = tuple(later.relabel[label] for label in self.relabel)
        return Transform(self.rotation_degrees + later.rotation_degrees, relabel)

    @property
    def inverse_labels(self) -> Transform:
        """Takes every label back to where it came from."""
        back = None if self.relabel is None else tuple(int(label) for label in np.argsort(self.relabel))
        return Transform(relabel=back)


IDENTITY = Transform()


def next_label(num_classes: int, by: int = 1) -> Transform:
    """Label y becomes (y + by) mod C."""
    return Transform(relabel=tuple((label + by) % num_classes for label in range(num_classes)))


def swapped_pairs(num_classes: int) -> Transform:
    """Labels 0 and 1 change places, 2 and 3, and so on; of an odd number the last stays."""
    return Transform(relabel=tuple(label ^ 1 if label ^ 1 < num_classes else label for label in range(num_classes)))
