"""FedGroup: the Gram matrix gives what the decomposition gives, and newcomers join the group they point along."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import TruncatedSVD

from server_kit import InvalidSetting, InvalidSummary
from server_kit.clustering import TernaryCosine, nearest_direction, ternary_embedding
from tests.server_kit.clustering.fleets import generator, grouped_updates, same_partition


def embedding_by_decomposition(updates, components):
    """(1 − cosine)/2 to the left singular vectors of the updates side by side."""
    left, values, _ = np.linalg.svd(updates.T, full_matrices=False)
    cosines = updates @ left[:, :components] / np.linalg.norm(updates, axis=1, keepdims=True)
    return (1 - cosines) / 2, values[:components]


def up_to_sign(embedding):
    return np.abs(np.asarray(embedding) - 0.5)


@pytest.mark.parametrize("components", [1, 3, 5])
def test_the_gram_matrix_gives_the_singular_vectors_cosines(components):
    updates, _ = grouped_updates(4, 6, 50, noise=0.2)
    embedding, values = ternary_embedding(updates, components)
    expected, expected_values = embedding_by_decomposition(updates.numpy(), components)
    np.testing.assert_allclose(values, expected_values, rtol=1e-9)
    np.testing.assert_allclose(up_to_sign(embedding), up_to_sign(expected), atol=1e-6)


def test_the_scaled_components_of_the_released_code_have_the_same_cosines():
    updates, _ = grouped_updates(4, 6, 50, noise=0.2)
    scaled = TruncatedSVD(3, algorithm="arpack").fit_transform(updates.numpy().T)
    cosines = updates.numpy() @ scaled / np.linalg.norm(updates, axis=1, keepdims=True) / np.linalg.norm(scaled, axis=0)
    np.testing.assert_allclose(up_to_sign(ternary_embedding(updates)[0]), up_to_sign((1 - cosines) / 2), atol=1e-6)


def test_float32_updates_give_the_same_embedding():
    updates, _ = grouped_updates(4, 6, 5_000, noise=0.02)
    np.testing.assert_allclose(ternary_embedding(updates.float())[0], ternary_embedding(updates)[0], atol=1e-4)


@pytest.mark.parametrize(("groups", "components"), [(2, 3), (3, 3), (6, 6)])
def test_groups_are_found(groups, components):
    updates, truth = grouped_updates(groups, 20, 500, noise=0.02)
    found = TernaryCosine(groups, components).cluster(updates, generator())
    assert same_partition(found.labels, truth)


def test_the_length_of_an_update_does_not_matter():
    updates, truth = grouped_updates(3, 20, 500, noise=0.02)
    lengths = torch.from_numpy(generator(1).uniform(0.5, 20, size=(60, 1)))
    assert same_partition(TernaryCosine(3).cluster(updates * lengths, generator()).labels, truth)


def test_directions_are_the_mean_updates():
    updates, _ = grouped_updates(3, 10, 40, noise=0.02)
    found = TernaryCosine(3).cluster(updates, generator())
    for group in range(found.count):
        torch.testing.assert_close(found.evidence.directions[group], updates[found.members(group)].mean(dim=0))


def test_a_newcomer_joins_the_group_it_points_along():
    updates, truth = grouped_updates(3, 11, 200, noise=0.02)
    found = TernaryCosine(3).cluster(updates[:30], generator())
    names = {int(truth[row]): int(found.labels[row]) for row in range(30)}
    for row in range(30, 33):
        assert nearest_direction(0.1 * updates[row], found.evidence.directions) == names[int(truth[row])]
        # With the wrong sign, the broken twin, it would join a group it does not point along.
        assert nearest_direction(-updates[row], found.evidence.directions) != names[int(truth[row])]


def test_a_zero_update_points_nowhere():
    embedding, _ = ternary_embedding(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 0.0]]), components=2)
    assert embedding[2].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_devices_than_groups_make_fewer_groups(count):
    found = TernaryCosine(5).cluster(torch.eye(4)[:count], generator())
    assert found.count == count


def test_equal_updates_are_one_group():
    assert TernaryCosine(3).cluster(torch.ones(9, 4), generator()).count == 1


def test_devices_in_another_order_have_the_same_groups():
    updates, _ = grouped_updates(3, 20, 100, noise=0.02)
    order = generator(5).permutation(60)
    straight = TernaryCosine(3).cluster(updates, generator()).labels
    shuffled = TernaryCosine(3).cluster(updates[torch.from_numpy(order)], generator()).labels
    assert same_partition(straight[order], shuffled)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidSummary, match="length"):
        nearest_direction(torch.zeros(3), torch.zeros(2, 4))
    with pytest.raises(InvalidSetting):
        TernaryCosine(0)
