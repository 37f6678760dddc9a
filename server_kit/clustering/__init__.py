"""Which devices belong together: the numerics of every clustering step, as parts without state.

Vectors are torch tensors on any device; labels are NumPy arrays. Whatever draws at random takes a generator:
the same seed, the same clusters. Nothing here knows rounds, cohorts or the wire.
"""

from __future__ import annotations

from server_kit.clustering.agglomerative import (
    BipartitionEvidence,
    CflCriterion,
    HierarchicalClustering,
    LinkageEvidence,
    bipartition,
)
from server_kit.clustering.agreement import adjusted_rand_index, purity
from server_kit.clustering.automatic_eps import AutomaticEps, Jump
from server_kit.clustering.buffered_spectral import (
    Buffered,
    EigengapEvidence,
    SpectralSplit,
    affinity,
    comparable_updates,
    normalised_laplacian,
    stable,
)
from server_kit.clustering.denoising import (
    Estimator,
    PosteriorRoots,
    UnbiasedCosineRows,
    denoised,
    estimator_for,
)
from server_kit.clustering.distances import (
    AverageHellingerRows,
    DistanceRows,
    EuclideanRows,
    cosine_points,
    cosine_similarity,
    hellinger_points,
    l2_points,
    mean_absolute_difference_of_cosines,
)
from server_kit.clustering.heterogeneity import Heterogeneity, heterogeneity, permutation_z, rms_ratio
from server_kit.clustering.kmeans import KMeans, KMeansEvidence
from server_kit.clustering.label_histograms import HistogramDistance, HistogramPoints, histogram_points
from server_kit.clustering.newcomers import placed
from server_kit.clustering.online_kmeans import OnlineEvidence, OnlineKMeans
from server_kit.clustering.optics import Optics, OpticsEvidence
from server_kit.clustering.partition import UNLABELLED, Clustering, Labels
from server_kit.clustering.reachability import Reachability, reachability
from server_kit.clustering.sketches import CountSketch
from server_kit.clustering.spanning_tree import Edges, SpanningTree
from server_kit.clustering.ternary_cosine import (
    TernaryCosine,
    TernaryEvidence,
    nearest_direction,
    ternary_embedding,
)
from server_kit.clustering.tree_at_scale import spanning_tree_at_scale

__all__ = [
    "AutomaticEps",
    "AverageHellingerRows",
    "BipartitionEvidence",
    "Buffered",
    "CflCriterion",
    "Clustering",
    "CountSketch",
    "DistanceRows",
    "Edges",
    "EigengapEvidence",
    "Estimator",
    "EuclideanRows",
    "Heterogeneity",
    "HierarchicalClustering",
    "HistogramDistance",
    "HistogramPoints",
    "Jump",
    "KMeans",
    "KMeansEvidence",
    "Labels",
    "LinkageEvidence",
    "OnlineEvidence",
    "OnlineKMeans",
    "Optics",
    "OpticsEvidence",
    "PosteriorRoots",
    "Reachability",
    "SpanningTree",
    "SpectralSplit",
    "TernaryCosine",
    "TernaryEvidence",
    "UNLABELLED",
    "UnbiasedCosineRows",
    "adjusted_rand_index",
    "affinity",
    "bipartition",
    "comparable_updates",
    "cosine_points",
    "cosine_similarity",
    "denoised",
    "estimator_for",
    "hellinger_points",
    "heterogeneity",
    "histogram_points",
    "l2_points",
    "mean_absolute_difference_of_cosines",
    "nearest_direction",
    "normalised_laplacian",
    "permutation_z",
    "placed",
    "purity",
    "reachability",
    "rms_ratio",
    "spanning_tree_at_scale",
    "stable",
    "ternary_embedding",
]
