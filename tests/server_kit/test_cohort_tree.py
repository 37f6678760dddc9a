"""A request always lands in a living leaf, a split loses nobody, and ids are never used twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from server_kit.cohort_tree import ROOT, CohortTree, common_ancestor, distance, lineage, parent_of

IDS = st.lists(st.integers(0, 3), max_size=4).map(lambda path: ".".join(["0", *map(str, path)]))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_new_tree_trains_its_root() -> None:
    assert CohortTree().leaves() == [ROOT]


def test_only_leaves_train_and_ids_are_paths() -> None:
    tree = CohortTree().split("0", 2).split("0.1", 3)
    assert tree.leaves() == ["0.0", "0.1.0", "0.1.1", "0.1.2"]
    assert not tree.is_leaf("0.1")
    assert list(lineage("0.1.2")) == ["0.1.2", "0.1", "0"]


def test_merged_cohorts_never_come_back_under_the_same_name() -> None:
    tree = CohortTree().split("0", 2).split("0.0", 2).merge("0")
    assert tree.leaves() == ["0"]
    assert tree.split("0", 2).leaves() == ["0.2", "0.3"]


def test_distance_is_the_depth_below_the_common_ancestor() -> None:
    assert distance("0.0.0", "0.0.1") == 1
    assert distance("0.0.1", "0.1") == 2
    assert distance("0.1", "0.1") == 0
    assert distance("0", "0.0.1") == 2


@given(IDS, IDS)
def test_distance_is_symmetric_and_zero_only_for_oneself(first: str, second: str) -> None:
    assert distance(first, second) == distance(second, first) >= 0
    assert (distance(first, second) == 0) == (first == second)
    assert common_ancestor(first, second) in lineage(first)


def test_a_request_follows_its_sub_cluster_then_its_rewards() -> None:
    tree = CohortTree().split("0", 2).split("0.1", 2)
    assert tree.match("0", 0, rng()) == "0.0"
    assert tree.match("0", 1, rng(), {"0.1.0": 0.1, "0.1.1": 0.7}) == "0.1.1"
    assert tree.match("0.0", None, rng()) == "0.0"


def test_a_request_for_a_merged_cohort_rises_to_its_living_ancestor() -> None:
    tree = CohortTree().split("0", 2).split("0.1", 2).merge("0.1")
    assert tree.match("0.1.0", 1, rng()) == "0.1"


@given(st.one_of(st.none(), IDS, st.text(max_size=8)), st.one_of(st.none(), st.integers(-3, 9)))
def test_whatever_is_asked_the_answer_is_a_living_leaf(requested: str | None, sub_cluster: int | None) -> None:
    tree = CohortTree().split("0", 3).split("0.1", 2).split("0.1.1", 2)
    assert tree.match(requested, sub_cluster, rng()) in tree.leaves()


def test_nothing_but_a_leaf_splits_and_nothing_childless_merges() -> None:
    tree = CohortTree().split("0", 2)
    for wrong in (lambda: tree.split("0", 2), lambda: tree.split("0.0", 1), lambda: tree.merge("0.0")):
        with pytest.raises(ValueError, match=r"leaf|children"):
            wrong()


class TreeLife(RuleBasedStateMachine):
    """Random splits and merges."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = CohortTree()
        self.used = {ROOT}

    @rule(index=st.integers(0, 50), parts=st.integers(2, 4))
    def split(self, index: int, parts: int) -> None:
        leaves = self.tree.leaves()
        before = set(leaves)
        self.tree = self.tree.split(leaves[index % len(leaves)], parts)
        fresh = set(self.tree.leaves()) - before
        assert len(fresh) == parts
        assert not fresh & self.used
        self.used |= fresh

    @rule(index=st.integers(0, 50))
    def merge(self, index: int) -> None:
        inner = sorted(self.tree.children)
        if inner:
            self.tree = self.tree.merge(inner[index % len(inner)])
            assert inner[index % len(inner)] in self.tree.leaves()

    @invariant()
    def leaves_are_disjoint_and_everyone_has_one(self) -> None:
        leaves = self.tree.leaves()
        assert leaves
        for leaf in leaves:
            assert not any(leaf in lineage(other) for other in leaves if other != leaf)
        for cohort in self.used:
            assert self.tree.match(cohort, None, rng()) in leaves

    @invariant()
    def parents_exist(self) -> None:
        for leaf in self.tree.leaves():
            parent = parent_of(leaf)
            assert parent is None or self.tree.exists(parent)


TestTreeLife = TreeLife.TestCase
TestTreeLife.settings = settings(max_examples=30, stateful_step_count=12, deadline=None)
