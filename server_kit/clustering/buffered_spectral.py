"""CASA's split of a cohort: spectral clustering of buffered updates, only where the eigengap asks for it.

CASA is published as slides only; this follows our reconstruction. Updates that started from very different
model versions are not comparable, so each member contributes the buffered one nearest to a common version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from server_kit.clustering.agreement import adjusted_rand_index
from server_kit.clustering.distances import cosine_similarity, unit_rows
from server_kit.clustering.kmeans import KMeans
from server_kit.clustering.partition import Clustering
from server_kit.errors import InvalidSetting, InvalidSummary


@dataclass(frozen=True)
class Buffered:
    """An update (or a sketch of one) and the model version it started from."""

    version: int
    update: torch.Tensor


@dataclass(frozen=True)
class EigengapEvidence:
    """The smallest Laplacian eigenvalues, where their largest gap lies, and whether a split came of it."""

    eigenvalues: tuple[float, ...]
    clusters: int
    gap: float
    """λ_{k+1} − λ_k at k = `clusters`; 0 where there are too few members to look."""
    refused: str = ""

    def outweighs(self, mixing_rate: float, exponent: float = 1.0) -> bool:
        """CASA's condition on time: models must have become steadier than the gap is wide, α < min(1, gap)^γ."""
        return bool(mixing_rate < min(1.0, self.gap) ** exponent)


@dataclass(frozen=True)
class SpectralSplit:
    """Splits a cohort into as many children as the largest eigengap says, each of at least `min_members`."""

    min_members: int = 3
    max_clusters: int = 8

    def __post_init__(self) -> None:
        if min(self.min_members, self.max_clusters) < 1:
            raise InvalidSetting("a child has at least one member, a cohort at least one child; nothing was computed")

    def cluster(self, similarity: torch.Tensor, rng: np.random.Generator) -> Clustering[EigengapEvidence]:
        """Children of a cohort with this similarity, or one cluster where there is no reason to split."""
        values, vectors = torch.linalg.eigh(normalised_laplacian(similarity))
        evidence = self._largest_gap(values)
        if evidence.clusters == 1:
            return _whole(len(similarity), evidence)
        rows = unit_rows(vectors[:, : evidence.clusters])
        children = KMeans(evidence.clusters, restarts=10).cluster(rows, rng)
        if children.sizes.min() < self.min_members:
            refusal = f"a child would have fewer than {self.min_members} members"
            return _whole(len(similarity), EigengapEvidence(evidence.eigenvalues, 1, evidence.gap, refusal))
        return Clustering(children.labels, evidence)

    def _largest_gap(self, eigenvalues: torch.Tensor) -> EigengapEvidence:
        most = min(self.max_clusters, len(eigenvalues) // self.min_members, len(eigenvalues) - 1)
        smallest = eigenvalues[: most + 1].clamp_min(0)
        shown = tuple(smallest.tolist())
        if most < 2:
            return EigengapEvidence(shown, 1, 0.0, "too few members")
        gaps = smallest.diff()
        return EigengapEvidence(shown, int(gaps.argmax()) + 1, float(gaps.max()))


def comparable_updates(buffers: Sequence[Sequence[Buffered]]) -> torch.Tensor:
    """One row for each member: its buffered update nearest to the newest version that the slowest member has.

    Of two equally near, the newer one.
    """
    if not buffers or not all(buffers):
        raise InvalidSummary("each member needs at least one buffered update; wait for the rest; nothing was computed")
    target = min(max(entry.version for entry in buffer) for buffer in buffers)
    nearest = [min(buffer, key=lambda entry: (abs(entry.version - target), -entry.version)) for buffer in buffers]
    return torch.stack([entry.update for entry in nearest])


def affinity(updates: torch.Tensor) -> torch.Tensor:
    """Cosines of the updates with opposed ones at 0 and none to oneself."""
    return cosine_similarity(updates).clamp_min(0).fill_diagonal_(0.0)


def normalised_laplacian(similarity: torch.Tensor) -> torch.Tensor:
    """I − D^(−½) A D^(−½); a member like no other is a component of its own, with eigenvalue 0."""
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or len(similarity) == 0:
        raise InvalidSummary(
            f"a similarity is a square matrix, got shape {tuple(similarity.shape)}; nothing was computed"
        )
    if not bool(torch.isfinite(similarity).all()) or bool((similarity < 0).any()):
        raise InvalidSummary("similarities are finite and not negative; see `affinity`; nothing was computed")
    symmetric = (similarity + similarity.T).double() / 2
    degree = symmetric.sum(dim=1)
    inverse_root = torch.where(degree > 0, degree, 1).rsqrt()
    return torch.diag((degree > 0).double()) - inverse_root[:, None] * symmetric * inverse_root


def stable(first: Clustering[EigengapEvidence], second: Clustering[EigengapEvidence], least: float = 0.8) -> bool:
    """Whether two generations of buffered updates tell the same story about who belongs together."""
    return first.count == second.count and adjusted_rand_index(first.labels, second.labels) >= least


def _whole(members: int, evidence: EigengapEvidence) -> Clustering[EigengapEvidence]:
    return Clustering(np.zeros(members, dtype=np.int64), evidence)
