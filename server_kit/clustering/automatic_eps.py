"""The distance at which to cut, read from the data: the middle of the largest jump between sorted lengths.

A fixed distance suits one number of labels only: 0.25 in Hellinger distance leaves 62-label histograms all alone.
A jump counts only if what is above is clearly longer than what is below, and if the cut leaves at least two
groups with a third of the devices in them; otherwise there is one group, and nothing is cut. So devices of one
distribution stay together, and a lone outlier does not make two groups.

In a large noised fleet outliers fill the jump: each is joined by a long edge that separates nothing but itself.
Then the lengths are looked at again without the edges that join fewer than 3, 9, 27, … devices to the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server_kit.clustering.partition import Labels
from server_kit.clustering.spanning_tree import Edges
from server_kit.clustering.union_find import UnionFind
from server_kit.errors import InvalidSetting

Lengths = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Jump:
    """The largest jump between neighbouring lengths, and whether it was taken for a border between groups."""

    below: float
    above: float
    taken: bool
    eps: float
    """Where to cut: inside the jump, or at the greatest length, where nothing is cut."""
    fewest_joined: int = 1
    """Edges that join fewer devices than this were not looked at."""


@dataclass(frozen=True)
class AutomaticEps:
    """How a jump is judged. The figures below are from simulated IID fleets, noised and not.

    `least_ratio`: how many times longer than below the lengths above must be; IID fleets stay below 1.5.
    `least_ratio_among_outliers`: the same where outliers are left out, from `devices_with_outliers` devices on;
    fewer lengths jump higher by chance, in IID fleets below 2.
    `resolution`: what one record more or less may change. Shorter distances are not told apart, or else
    histograms of few records would fall into one group for each possible count.
    """

    least_ratio: float = 1.5
    least_ratio_among_outliers: float = 2.0
    devices_with_outliers: int = 400
    resolution: float = 0.0

    def __post_init__(self) -> None:
        if not (min(self.least_ratio, self.least_ratio_among_outliers) > 1 and 0 <= self.resolution < np.inf):
            raise InvalidSetting(
                f"a jump needs ratios above 1 and a resolution of 0 or more, got {self.least_ratio:g}, "
                f"{self.least_ratio_among_outliers:g} and {self.resolution:g}; nothing was computed"
            )

    def jump(self, devices: int, edges: Edges, clusters_at: Callable[[float], Labels]) -> Jump:
        """The first jump that is a border between groups; the largest of all lengths where there is none."""
        plain = self._jump(edges.lengths, self.least_ratio, clusters_at)
        if plain.taken or devices < self.devices_with_outliers:
            return plain
        joined = devices_joined(devices, edges)
        for fewest in powers_of_three(devices // 100):
            lengths = edges.lengths[joined >= fewest]
            found = self._jump(lengths, self.least_ratio_among_outliers, clusters_at, fewest)
            if found.taken:
                return found
        return plain

    def _jump(
        self, lengths: Lengths, ratio: float, clusters_at: Callable[[float], Labels], fewest_joined: int = 1
    ) -> Jump:
        ascending = np.sort(np.maximum(lengths, self.resolution))
        if len(ascending) < 2:
            return Jump(0.0, 0.0, taken=False, eps=float(ascending.max(initial=0.0)))
        highest = int(np.argmax(np.diff(ascending)))
        below, above = float(ascending[highest]), float(ascending[highest + 1])
        middle = (below + above) / 2
        clear = below < middle < above and above >= ratio * below
        taken = clear and has_groups(clusters_at(middle))
        return Jump(below, above, taken, middle if taken else float(ascending[-1]), fewest_joined)


def has_groups(labels: Labels) -> bool:
    """Whether at least two clusters have company, and hold a third of the devices."""
    sizes = np.bincount(labels)
    together = sizes[sizes > 1]
    return len(together) >= 2 and bool(3 * together.sum() >= len(labels))


def devices_joined(devices: int, edges: Edges) -> npt.NDArray[np.int64]:
    """How many devices each edge joins to the larger side, when edges are added from the shortest on."""
    pieces, sizes = UnionFind(devices), [1] * devices
    joined = np.empty(len(edges), dtype=np.int64)
    ascending = np.argsort(edges.lengths, kind="stable")
    columns = (ascending, edges.sources[ascending], edges.targets[ascending])
    for edge, source, target in zip(*(column.tolist() for column in columns), strict=True):
        one, other = pieces.group_of(source), pieces.group_of(target)
        joined[edge] = min(sizes[one], sizes[other])
        pieces.join(one, other)
        sizes[other] += sizes[one]
    return joined


def powers_of_three(most: int) -> Iterator[int]:
    """3, 9, 27, … up to `most`."""
    power = 3
    while power <= most:
        yield power
        power *= 3
