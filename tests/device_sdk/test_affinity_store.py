"""What a device learned about cohorts outlives the app, and its loss costs exploration, not a failure."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import affinity_store
from device_sdk.affinity import AffinityRecord
from device_sdk.affinity import Feedback as Said
from device_sdk.affinity_store import AffinityStore, tree_distance
from device_sdk.errors import FeedbackRefused
from device_sdk.vault import Vault
from device_sdk.wire.messages import Feedback, Split
from server_kit import cohort_tree
from tests.device_sdk.conftest import SERVER
from tests.device_sdk.vault import raw

LEAVES = ("0.0", "0.1")
FIRST = Feedback("0.0", 3, b"mac of the server", reward_change=0.5, sub_cluster=1)


@pytest.fixture
def store(vault):
    return AffinityStore(vault, SERVER)


def test_what_was_learned_is_there_after_reopening(store, vault, state, key_store):
    learned = store.learn(FIRST, LEAVES)
    assert learned == AffinityRecord().learned(Said("0.0", 3, 0.5, 1), LEAVES, tree_distance)
    vault.close()
    with Vault.open(state, key_store) as again:
        assert AffinityStore(again, SERVER).load() == learned


def test_the_servers_own_words_are_returned_with_a_claim(store):
    store.learn(FIRST, LEAVES)
    claim = store.claim("0.0")
    assert claim.evidence == FIRST
    assert claim.reward == store.load().reward("0.0") > 0


def test_a_cohort_without_feedback_is_claimed_without_evidence(store):
    assert store.claim("0.1").evidence is None
    store.learn(FIRST, LEAVES)
    assert store.claim("0.1").evidence is None
    assert store.claim("0.1").reward > 0


def test_a_child_is_claimed_by_the_feedback_of_its_parent(store):
    store.learn(FIRST, LEAVES)
    record = store.follow([Split("0.0", ("0.0.0", "0.0.1"))])
    assert record.reward("0.0.1") > record.reward("0.0.0") > 0
    assert store.claim("0.0.1").evidence == FIRST
    assert store.load() == record


def test_following_the_same_splits_again_changes_nothing(store, state):
    store.learn(FIRST, LEAVES)
    splits = [Split("0.0", ("0.0.0", "0.0.1"))]
    store.follow(splits)
    before = raw.part(state, "index")
    store.follow(splits)
    assert raw.part(state, "index") == before


def test_stale_feedback_changes_neither_record_nor_evidence(store):
    record = store.learn(FIRST, LEAVES)
    assert store.learn(Feedback("0.0", 2, b"older", reward_change=-9.0), LEAVES) == record
    assert store.claim("0.0").evidence == FIRST


def test_a_lost_record_means_exploring_again_aloud(store, vault, state, events):
    store.learn(FIRST, LEAVES)
    raw.overwrite_record(state, max(raw.sealed_records(state)), b"altered")
    assert store.load() == AffinityRecord()
    assert "affinity_unreadable" in events()
    assert store.claim("0.0").evidence is None
    assert store.learn(FIRST, LEAVES) == store.load() != AffinityRecord()


def test_a_record_in_another_form_means_exploring_again(store, vault):
    vault.table(SERVER, "affinity").put("current", b"{")
    assert store.load() == AffinityRecord()


@pytest.mark.parametrize(
    "feedback",
    [
        Feedback("0.0", 1, b"", reward_change=math.nan),
        Feedback("0.0", 1, b"", reward_change=-math.inf),
        Feedback("0.0", 1, b"", reward_change=1e300),
        Feedback("0.0", 1, b"", sub_cluster=-1),
        Feedback("0.0", -1, b""),
        Feedback("0.0", 1, b"m" * 257),
    ],
)
def test_feedback_out_of_bounds_is_not_learned(store, events, feedback):
    store.learn(FIRST, LEAVES)
    before = store.load()
    with pytest.raises(FeedbackRefused):
        store.learn(feedback, LEAVES)
    assert store.load() == before
    assert "feedback_refused" in events()


def test_a_server_that_invents_cohorts_does_not_fill_the_disk(store, monkeypatch, events):
    monkeypatch.setattr(affinity_store, "MOST_COHORTS", 5)
    for number in range(9):
        store.learn(Feedback(f"0.{number}", number, b"m", reward_change=0.1), ())
    assert sorted(store.load().affinities) == [f"0.{number}" for number in range(4, 9)]
    assert store.claim("0.0").evidence is None
    assert "affinity_forgotten" in events()


def test_learning_and_what_else_happens_are_one_change(store, vault):
    def learn_and_fail():
        with vault.changing():
            store.learn(FIRST, LEAVES)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        learn_and_fail()
    assert store.load() == AffinityRecord()


paths = st.lists(st.integers(0, 2), max_size=4).map(lambda steps: ".".join(["0", *map(str, steps)]))


@given(paths, paths)
def test_distances_are_those_of_the_servers_tree(one, other):
    assert tree_distance(one, other) == cohort_tree.distance(one, other)
