"""The names that built-in parts go by in a configuration; anything else is `package.module:Class`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from server_kit import aggregation, formation, selection
from server_kit.clustering import AutomaticEps, HierarchicalClustering, KMeans, Optics, TernaryCosine
from server_kit.formation.clusterers import Given, RandomCentres, RandomLabels
from server_kit.formation.summaries import (
    AsTheyAre,
    FeatureHistograms,
    FeatureTables,
    FirstUpdates,
    Histograms,
    LabelHistograms,
    TrueGroups,
)
from server_kit.interfaces import (
    Aggregator,
    Clusterer,
    Distance,
    Formation,
    Matcher,
    Mixing,
    Objective,
    Selector,
    SplitRule,
    Summarizer,
)
from server_kit.matching import Assigned, BestModel, ByRequest, OwnChoice
from server_kit.mixing import InterGroup
from server_kit.objectives import Plain, Proximal, SparseMasked

PARTS: Mapping[Any, Mapping[str, Callable[..., Any]]] = {
    Selector: {
        "uniform": selection.Uniform,
        "cluster_weighted": selection.ClusterWeighted,
        "oort": selection.Oort,
        "oort_lite": selection.OortLite,
        "tifl": selection.TiFL,
    },
    Aggregator: {
        "fedavg": aggregation.FedAvg,
        "fedyogi": aggregation.FedYogi,
        "qfedavg": aggregation.QFedAvg,
        "fedasync": aggregation.FedAsync,
        "fedbuff": aggregation.FedBuff,
        "casa": aggregation.CasaDecay,
        "coordinate_median": aggregation.CoordinateMedian,
        "trimmed_mean": aggregation.TrimmedMean,
        "guarded": aggregation.Guarded,
        "norm_bound": aggregation.NormBound,
    },
    Objective: {"plain": Plain, "proximal": Proximal, "sparse_masked": SparseMasked},
    Matcher: {"by_request": ByRequest, "assigned": Assigned, "best_model": BestModel, "own_choice": OwnChoice},
    Mixing: {"inter_group": InterGroup},
    Formation: {
        "never": formation.Never,
        "founding": formation.Founding,
        "online": formation.Online,
        "bipartition": formation.Bipartition,
        "spectral": formation.Spectral,
        "several_models": formation.SeveralModels,
        "gated": formation.Gated,
        "discovery": formation.Discovery,
    },
    SplitRule: {
        "fixed_rounds": formation.FixedRounds,
        "paper_ratio": formation.PaperRatio,
        "evidence": formation.Evidence,
    },
    Summarizer: {
        "label_histograms": LabelHistograms,
        "feature_histograms": FeatureHistograms,
        "first_updates": FirstUpdates,
        "true_groups": TrueGroups,
    },
    Distance: {"as_they_are": AsTheyAre, "histograms": Histograms, "feature_tables": FeatureTables},
    Clusterer: {
        "optics": Optics,
        "kmeans": KMeans,
        "ternary_cosine": TernaryCosine,
        "hierarchical": HierarchicalClustering,
        "given": Given,
        "random_centres": RandomCentres,
        "random_labels": RandomLabels,
    },
    AutomaticEps: {"automatic": AutomaticEps},
}
"""For each extension point, its built-in parts."""
