"""Auxo's sub-clustering: the first round by k-means, later rounds by those who came with a label."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from server_kit import InvalidSetting, InvalidSummary
from server_kit.clustering import UNLABELLED, OnlineKMeans
from server_kit.clustering.online_kmeans import directions
from tests.server_kit.clustering.fleets import generator, grouped_updates, same_partition


def test_directions_are_relative_to_the_mean_and_of_length_one():
    found = directions(torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]]))
    assert found.tolist() == [[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]


def test_the_first_round_finds_the_groups():
    updates, truth = grouped_updates(2, 15, 200, noise=0.02, common=3.0)
    assert same_partition(OnlineKMeans().first(updates, generator()).labels, truth)


def test_uncentred_updates_would_all_point_the_same_way():
    updates, _ = grouped_updates(2, 15, 200, noise=0.02, common=30.0)
    unit = updates / updates.norm(dim=1, keepdim=True)
    assert float((unit @ unit.T).min()) > 0.99
    assert float((directions(updates) @ directions(updates).T).min()) < -0.5


def nearest_mean_by_hand(points, stored):
    centres = {label: points[stored == label].mean(axis=0) for label in set(stored) - {UNLABELLED}}
    apart = {label: np.linalg.norm(points - centre, axis=1) for label, centre in centres.items()}
    return [min(apart, key=lambda label: apart[label][row]) for row in range(len(points))]


@pytest.mark.parametrize("clusters", [2, 3])
def test_later_rounds_follow_the_labelled(clusters):
    updates, truth = grouped_updates(clusters, 12, 100, noise=0.1, seed=1)
    stored = np.where(generator(2).random(len(truth)) < 0.5, truth, UNLABELLED)
    found = OnlineKMeans(clusters).later(updates, stored)
    assert found.labels.tolist() == nearest_mean_by_hand(directions(updates).numpy(), stored)
    assert found.labels.tolist() == truth.tolist()
    assert found.evidence.present == tuple(range(clusters))


def test_a_wrong_label_is_revised():
    updates, truth = grouped_updates(2, 12, 100, noise=0.05)
    stored = truth.copy()
    stored[0] = 1 - stored[0]
    assert OnlineKMeans().later(updates, stored).labels.tolist() == truth.tolist()


def test_with_a_sub_cluster_absent_only_the_nearest_quarter_is_labelled():
    updates, truth = grouped_updates(2, 12, 100, noise=0.05)
    stored = np.full(24, UNLABELLED)
    stored[np.flatnonzero(truth == 1)[:3]] = 1
    found = OnlineKMeans().later(updates, stored)
    assert found.evidence.present == (1,)
    assert set(found.labels) == {UNLABELLED, 1}
    assert 3 <= (found.labels == 1).sum() <= 9
    assert (truth[found.labels == 1] == 1).all()
    # The plain rule, the broken twin, would have drawn everybody to the only centre there is.
    assert set(nearest_mean_by_hand(directions(updates).numpy(), stored)) == {1}


def test_without_a_labelled_participant_nothing_is_said():
    updates, _ = grouped_updates(2, 12, 100, noise=0.05)
    found = OnlineKMeans().later(updates, np.full(24, UNLABELLED))
    assert (found.labels == UNLABELLED).all()
    assert found.evidence.skipped == "no labelled participant"


def test_too_few_participants_keep_their_labels():
    updates, _ = grouped_updates(2, 2, 20, noise=0.05)
    stored = np.array([0, UNLABELLED, 1, 0])
    assert OnlineKMeans().later(updates, stored).labels.tolist() == stored.tolist()
    assert OnlineKMeans().first(updates, generator()).labels.tolist() == [UNLABELLED] * 4
    assert OnlineKMeans().first(updates, generator()).evidence.skipped == "too few participants"


def test_participants_in_another_order_get_the_same_labels():
    updates, truth = grouped_updates(2, 12, 100, noise=0.3)
    stored = np.where(generator(3).random(24) < 0.5, truth, UNLABELLED)
    order = generator(4).permutation(24)
    straight = OnlineKMeans().later(updates, stored).labels
    assert (
        OnlineKMeans().later(updates[torch.from_numpy(order)], stored[order]).labels.tolist()
        == straight[order].tolist()
    )


def test_labels_of_another_cohort_are_refused():
    with pytest.raises(InvalidSummary, match="beyond"):
        OnlineKMeans().later(torch.zeros(6, 2), np.array([0, 1, 2, 0, 1, 0]))
    with pytest.raises(InvalidSummary, match="stored labels"):
        OnlineKMeans().later(torch.zeros(6, 2), np.array([0, 1]))


def test_one_sub_cluster_is_no_division():
    with pytest.raises(InvalidSetting):
        OnlineKMeans(clusters=1)
