"""Which devices are already connected, while edges are added one by one."""

from __future__ import annotations


class UnionFind:
    """Disjoint groups of 0..count−1, each known by one of its members."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def group_of(self, member: int) -> int:
        """The member by which the group is known."""
        above = self._above
        while above[member] != member:
            above[member] = above[above[member]]  # halve the path for those who ask later
            member = above[member]
        return member

    def join(self, one: int, other: int) -> None:
        """Make the group known by `one` a part of the group known by `other`."""
        self._above[one] = other
