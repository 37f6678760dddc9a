"""FedGroup: devices grouped by how their first update points along the few strongest directions of all.

The directions are the leading left singular vectors of the updates side by side (D x n). They follow from the
n x n Gram matrix, so a model of millions of weights is read a few times and never decomposed: with G u = σ² u,
the cosine of update i with direction k is σ_k u_ik / ‖Δ_i‖.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from server_kit.clustering.checks import require_vectors
from server_kit.clustering.distances import gram_matrix, unit_rows
from server_kit.clustering.kmeans import KMeans
from server_kit.clustering.partition import Clustering, Labels, as_labels
from server_kit.errors import InvalidSetting, InvalidSummary

WEAKEST = 1e-6
DECIMALS = 6


@dataclass(frozen=True)
class TernaryEvidence:
    """The groups' mean updates, the embedding (device x component, from 0 to 1), and how strong each component is."""

    directions: torch.Tensor
    embedding: torch.Tensor
    singular_values: torch.Tensor


@dataclass(frozen=True)
class TernaryCosine:
    """At most `groups` groups from `components` directions: 3 in FedGroup, as many as groups in FlexCFL."""

    groups: int
    components: int = 3
    iterations: int = 20

    def __post_init__(self) -> None:
        if min(self.groups, self.components, self.iterations) < 1:
            raise InvalidSetting("at least one group, component and iteration are needed; nothing was computed")

    def cluster(self, updates: torch.Tensor, rng: np.random.Generator) -> Clustering[TernaryEvidence]:
        """Group devices by their pre-training updates."""
        embedding, strengths = ternary_embedding(updates, self.components)
        found = KMeans(min(self.groups, len(updates)), self.iterations).cluster(embedding, rng)
        directions = group_directions(updates, found.labels)
        return Clustering(found.labels, TernaryEvidence(directions, embedding, strengths))


def ternary_embedding(updates: torch.Tensor, components: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """(1 − cos(Δ_i, v_k))/2 for the strongest directions v_k, and their singular values.

    A direction's sign is arbitrary; here its largest entry is positive, so that the same updates always have
    the same embedding. A zero update is at ½: it points nowhere. What float32 cannot tell apart is the same:
    directions that weak count as absent, and cosines that close as equal.
    """
    gram = gram_matrix(updates)
    eigenvalues, eigenvectors = torch.linalg.eigh(gram)
    count = min(components, len(updates))
    squared = eigenvalues.flip(0)[:count].clamp_min(0)
    strengths = torch.where(squared > WEAKEST * squared[0], squared, 0).sqrt()
    vectors = eigenvectors.flip(1)[:, :count]
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
    norms = gram.diagonal().clamp_min(0).sqrt()
    cosines = vectors * strengths / torch.where(norms > 0, norms, 1)[:, None]
    return ((1 - cosines.clamp(-1, 1)) / 2).round(decimals=DECIMALS), strengths


def group_directions(updates: torch.Tensor, labels: Labels) -> torch.Tensor:
    """The mean update of each group, with equal weights."""
    membership = torch.nn.functional.one_hot(torch.from_numpy(as_labels(labels))).to(updates.device, updates.dtype)
    return (membership / membership.sum(dim=0)).T @ updates


def nearest_direction(update: torch.Tensor, anchors: torch.Tensor) -> int:
    """The group whose frozen direction a newcomer's update, trained from the same start, points along most."""
    require_vectors(anchors, "group directions")
    if update.shape != anchors.shape[1:]:
        raise InvalidSummary("the update and the group directions differ in length; the newcomer was not assigned")
    own = unit_rows(require_vectors(update[None], "updates"))
    return int(((1 - unit_rows(anchors) @ own[0].to(anchors.dtype)) / 2).argmin())
