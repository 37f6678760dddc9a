"""Affinity records follow Auxo's rules and stay sane whatever arrives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.affinity import Affinity, AffinityRecord, Exploration, Feedback
from server_kit.cohort_tree import distance


class Dice:
    """Seeded chance for tests."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def random(self) -> float:
        return float(self._rng.random())

    def below(self, bound: int) -> int:
        return int(self._rng.integers(bound))


LEAVES = ["0.0.0", "0.0.1", "0.1"]


def test_reward_is_an_exponential_mean() -> None:
    record = AffinityRecord({"0.0.1": Affinity(0.5, 1, 3)})
    after = record.learned(Feedback("0.0.1", 4, 1.0), LEAVES, distance)
    assert after.reward("0.0.1") == pytest.approx(0.2 * 1.0 + 0.8 * 0.5)


def test_evidence_spreads_to_other_leaves_by_tree_distance() -> None:
    """The paper's example: ΔR = −3 at 0.0.1 leaves the far 0.1 better placed than the sibling 0.0.0."""
    after = AffinityRecord().learned(Feedback("0.0.1", 1, -3.0), LEAVES, distance)
    assert after.reward("0.0.0") == pytest.approx(0.2 * -1.5)
    assert after.reward("0.1") == pytest.approx(0.2 * -1.0)


def test_spreading_the_reward_itself_would_count_old_evidence_again() -> None:
    record = AffinityRecord({"0.0.1": Affinity(5.0, None, 1)})
    after = record.learned(Feedback("0.0.1", 2, 0.0), LEAVES, distance)
    assert after.reward("0.1") == 0.0


def test_an_outlier_loses_its_sub_cluster() -> None:
    record = AffinityRecord({"0": Affinity(0.1, 1, 1)})
    assert record.learned(Feedback("0", 2, -0.5), ["0"], distance).affinities["0"].sub_cluster is None
    assert record.learned(Feedback("0", 2, 0.5), ["0"], distance).affinities["0"].sub_cluster == 1


def test_stale_feedback_changes_nothing() -> None:
    record = AffinityRecord({"0": Affinity(0.1, 1, 9)})
    assert record.learned(Feedback("0", 8, 1.0, 0), ["0"], distance) == record


def test_children_inherit_and_the_likelier_one_gets_the_bonus() -> None:
    record = AffinityRecord({"0": Affinity(0.4, 1, 9)}).after_split("0", ["0.0", "0.1"])
    assert record.reward("0.0") == pytest.approx(0.4)
    assert record.reward("0.1") == pytest.approx(0.5)
    assert AffinityRecord().after_split("0", ["0.0", "0.1"]) == AffinityRecord()


def test_a_device_without_a_record_asks_for_any_leaf_alike() -> None:
    chance = Dice()
    asked = Counter(AffinityRecord().choose(LEAVES, 0.0, chance) for _ in range(3000))
    assert all(abs(count - 1000) < 120 for count in asked.values())


def test_explores_with_probability_epsilon_not_its_complement() -> None:
    record = AffinityRecord({"0.1": Affinity(9.0)})
    chance = Dice()
    strayed = sum(record.choose(LEAVES, 0.1, chance) != "0.1" for _ in range(3000))
    assert strayed == pytest.approx(3000 * 0.1 * 2 / 3, rel=0.25)


def test_ties_fall_at_random() -> None:
    record = AffinityRecord({"0.0.0": Affinity(1.0), "0.1": Affinity(1.0)})
    chance = Dice()
    assert {record.choose(LEAVES, 0.0, chance) for _ in range(60)} == {"0.0.0", "0.1"}


def test_exploration_decays_by_rounds_to_its_floor() -> None:
    exploration = Exploration()
    assert exploration.probability(0) == pytest.approx(0.1)
    assert exploration.probability(100) == pytest.approx(0.1 * 0.99**100)
    assert exploration.probability(10_000) == 0.01


@given(
    st.lists(
        st.builds(
            Feedback,
            cohort=st.sampled_from(["0", *LEAVES, "9.9"]),
            round=st.integers(0, 20),
            reward_change=st.none() | st.floats(-5, 1),
            sub_cluster=st.none() | st.integers(0, 3),
        ),
        max_size=20,
    )
)
def test_whatever_is_learned_a_living_leaf_is_asked_for(feedbacks: list[Feedback]) -> None:
    record = AffinityRecord()
    for feedback in feedbacks:
        record = record.learned(feedback, LEAVES, distance)
    assert record.choose(LEAVES, 0.1, Dice()) in LEAVES
