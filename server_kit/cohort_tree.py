"""The tree of cohorts: who descends from whom, which of them train, and where a request belongs.

Only leaves train. A cohort's id is its path from the root, so an id that was valid once always leads to a leaf:
down to the closest living one if the cohort has split since, up to its nearest living ancestor if it was merged
back. Ids are never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from server_kit.interfaces import CohortId

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

ROOT: CohortId = "0"


def parent_of(cohort: CohortId) -> CohortId | None:
    return cohort.rpartition(".")[0] or None


def depth_of(cohort: CohortId) -> int:
    return cohort.count(".")


def lineage(cohort: CohortId) -> Iterator[CohortId]:
    """The cohort, its parent, and so on to the root."""
    current: CohortId | None = cohort
    while current is not None:
        yield current
        current = parent_of(current)


def common_ancestor(first: CohortId, second: CohortId) -> CohortId:
    """The closest cohort that both descend from; the root where an id belongs to no tree of ours."""
    theirs = set(lineage(second))
    return next((cohort for cohort in lineage(first) if cohort in theirs), ROOT)


def distance(first: CohortId, second: CohortId) -> int:
    """The greater depth of the two above their common ancestor: siblings 1, nephew and uncle 2."""
    return max(depth_of(first), depth_of(second)) - depth_of(common_ancestor(first, second))


@dataclass(frozen=True)
class CohortTree:
    """Which cohorts have split, and into which children. A value: split and merge give a new tree."""

    children: Mapping[CohortId, tuple[CohortId, ...]] = field(default_factory=dict)
    born: Mapping[CohortId, int] = field(default_factory=dict)
    """How many children a cohort has ever had, so that an id is not given twice."""

    def leaves(self) -> list[CohortId]:
        """The cohorts that train, in the order of their paths."""
        return list(self._leaves)

    @cached_property
    def _leaves(self) -> tuple[CohortId, ...]:
        return tuple(cohort for cohort in self._below(ROOT) if not self.children.get(cohort))

    def is_leaf(self, cohort: CohortId) -> bool:
        return self.exists(cohort) and not self.children.get(cohort)

    def exists(self, cohort: CohortId) -> bool:
        """Whether it stands in the tree now, as a leaf or above one."""
        return cohort in self._standing

    @cached_property
    def _standing(self) -> frozenset[CohortId]:
        return frozenset(self._below(ROOT))

    def split(self, cohort: CohortId, parts: int) -> CohortTree:
        """`cohort` stops training and its `parts` children begin."""
        if not self.is_leaf(cohort) or parts < 2:
            raise ValueError(f"only a leaf can split, and into two parts at least; {cohort} into {parts}")
        first = self.born.get(cohort, 0)
        children = tuple(f"{cohort}.{first + part}" for part in range(parts))
        return CohortTree({**self.children, cohort: children}, {**self.born, cohort: first + parts})

    def merge(self, cohort: CohortId) -> CohortTree:
        """Everything below `cohort` ends, and it trains again."""
        if not self.children.get(cohort):
            raise ValueError(f"cohort {cohort} has no children to merge")
        gone = set(self._below(cohort)) - {cohort}
        kept = {node: children for node, children in self.children.items() if node != cohort and node not in gone}
        return CohortTree(kept, self.born)

    def match(
        self,
        requested: CohortId | None,
        sub_cluster: int | None,
        rng: np.random.Generator,
        rewards: Mapping[CohortId, float] | None = None,
    ) -> CohortId:
        """The leaf closest to what a device asked for; whatever it asks, the answer is a leaf.

        Below a cohort that has split since: the child of the sub-cluster that the device was told, else the
        child whose reward it knows to be best, else any.
        """
        current = self._nearest_living(requested)
        while children := self.children.get(current):
            current = self._child(children, sub_cluster if current == requested else None, rewards or {}, rng)
        return current

    def _nearest_living(self, requested: CohortId | None) -> CohortId:
        ancestors = lineage(requested) if requested else iter(())
        return next((cohort for cohort in ancestors if self.exists(cohort)), ROOT)

    def _child(
        self,
        children: tuple[CohortId, ...],
        sub_cluster: int | None,
        rewards: Mapping[CohortId, float],
        rng: np.random.Generator,
    ) -> CohortId:
        if sub_cluster is not None and 0 <= sub_cluster < len(children):
            return children[sub_cluster]
        known = [child for child in children if child in rewards]
        if known:
            return max(known, key=lambda child: rewards[child])
        return children[int(rng.integers(len(children)))]

    def _below(self, cohort: CohortId) -> Iterator[CohortId]:
        yield cohort
        for child in self.children.get(cohort, ()):
            yield from self._below(child)
