"""Published systems, the baselines they were compared with, and our own: each is data, a choice of parts.

`strategy` builds one; what it is given besides is laid over the preset, table by table:

    strategy("auxo", {"formation": {"rule": {"kind": "fixed_rounds", "rounds": [50, 100]}}})
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from server_kit.aggregation import CasaDecay
from server_kit.objectives import SparseMasked
from server_kit.parts import PARTS
from server_kit.places import Place
from server_kit.reading import Reader
from server_kit.strategy import Strategy

Table = dict[str, Any]

_FIRST_UPDATES: Table = {
    "kind": "founding",
    "summarizer": "first_updates",
    "clusterer": {"kind": "ternary_cosine", "groups": 3},
    "sample": 60,
    "start": "mean_update",
}
_HISTOGRAMS: Table = {
    "kind": "founding",
    "summarizer": {"kind": "label_histograms", "epsilon": 0.1},
    "distance": {"kind": "histograms", "distance": "hellinger"},
    "clusterer": {"kind": "optics", "eps": 0.4},
    "use": "selection",
}
_FEDGROUP: Table = {"formation": _FIRST_UPDATES, "matcher": "assigned", "budget": "shared"}
_ONLINE: Table = {"kind": "online", "rule": "evidence"}
_CASA: Table = {
    "aggregator": "casa",
    "formation": {"kind": "gated", "inner": "spectral"},
    "matcher": "assigned",
    "buffer": 1,
}

PRESETS: Mapping[str, Table] = {
    # one model
    "fedavg": {},
    "fedprox": {"objective": {"kind": "proximal", "mu": 1.0}},
    "fedyogi": {"aggregator": "fedyogi"},
    "qfedavg": {"aggregator": "qfedavg", "reports_loss": True},
    "ftfa": {"fine_tune_epochs": 1},
    "standalone": {"alone": True},
    "tifl": {"selector": "tifl", "reports_loss": True},
    "oort": {"selector": "oort", "reports_loss": True},
    "oort_lite": {"selector": "oort_lite", "reports_loss": True},
    "haccs": {"selector": "cluster_weighted", "formation": _HISTOGRAMS, "reports_loss": True},
    "haccs_features": {
        "selector": "cluster_weighted",
        "formation": {
            **_HISTOGRAMS,
            "summarizer": {"kind": "feature_histograms", "epsilon": 0.1},
            "distance": "feature_tables",
        },
        "reports_loss": True,
    },
    "fedasync": {"aggregator": "fedasync", "buffer": 1},
    "fedbuff": {"aggregator": "fedbuff", "buffer": 10},
    # a model for each cohort
    "auxo": {"aggregator": "fedyogi", "formation": _ONLINE, "over_commit": 1.25},
    "fedgroup": _FEDGROUP,
    "fedgrouprox": {**_FEDGROUP, "objective": {"kind": "proximal", "mu": 1.0}},
    "fedgroup_rcc": {
        **_FEDGROUP,
        "formation": {**_FIRST_UPDATES, "clusterer": {"kind": "random_centres", "groups": 3}},
    },
    "fedgroup_rac": {
        **_FEDGROUP,
        "formation": {
            "kind": "founding",
            "summarizer": "first_updates",
            "clusterer": {"kind": "random_labels", "groups": 3},
            "start": "mean_update",
        },
    },
    "flexcfl": {
        **_FEDGROUP,
        "formation": {**_FIRST_UPDATES, "clusterer": {"kind": "ternary_cosine", "groups": 3, "components": 3}},
    },
    "covey": {
        "aggregator": "fedyogi",
        # By loss alone, and any device of a cluster: whoever prefers the fast hears little of those with many records.
        "selector": {"kind": "cluster_weighted", "rho": 0.0, "explore": 1.0},
        "formation": {
            "kind": "gated",
            "least_share": 0.8,
            "inner": {
                "kind": "discovery",
                "summarizer": {"kind": "label_histograms", "epsilon": 1.0},
                "distance": {"kind": "histograms", "distance": "l2"},
                "clusterer": {"kind": "optics", "eps": 0.4},
                "blind_groups": 4,
            },
        },
        "matcher": {"kind": "own_choice", "renew_steps": 40},
        # Soon to a usable model; then every device's records count, the slowest included.
        "over_commit": 1.5,
        "hurried_rounds": 20,
        "reports_loss": True,
    },
    "casa": _CASA,
    "casa_plus": {**_CASA, "objective": "sparse_masked"},
    "cfl": {"formation": "bipartition", "matcher": "assigned", "budget": "shared"},
    "cfl_async": {"formation": "bipartition", "matcher": "assigned", "aggregator": "fedasync", "buffer": 1},
    "flhc": {
        "formation": {
            "kind": "founding",
            "summarizer": {"kind": "first_updates"},
            "clusterer": {"kind": "hierarchical", "clusters": 4},
            "at_round": 10,
        },
        "matcher": "assigned",
        "budget": "shared",
    },
    "ifca": {"formation": {"kind": "several_models", "models": 4}, "matcher": "best_model", "budget": "shared"},
    "ifca_async": {
        "formation": {"kind": "several_models", "models": 4},
        "matcher": "best_model",
        "aggregator": "fedasync",
        "buffer": 1,
    },
    "oracle": {
        "formation": {"kind": "founding", "summarizer": "true_groups", "clusterer": "given", "likeness": "euclidean"},
        "matcher": "assigned",
        "budget": "shared",
    },
}
"""Names to parts; what is not said is `Strategy`'s default."""

UNDER_TERMS: Mapping[str, Mapping[str, Table]] = {
    # Participations and choices are scarce: nobody trains in vain, only who trains is asked to choose, and who has
    # chosen looks again when he trains next. A server step that is linear in the noise keeps random starts apart.
    "record": {
        "covey": {
            "aggregator": "fedavg",
            "matcher": {"kind": "own_choice", "renew_steps": 20},
            "budget": "shared",
            "over_commit": 1.0,
        },
    },
    # Noise drowns every update, a histogram hides records only, and a choice costs more than it finds: what is left is
    # one model, and a server step that is linear in the noise.
    "device": {
        "covey": {
            "aggregator": "fedavg",
            "selector": "uniform",
            "formation": "never",
            "matcher": "by_request",
            "over_commit": 1.0,
            "reports_loss": False,
        },
    },
}
"""For what privacy terms hide: the parts that a preset takes instead."""

_GO_TOGETHER = {"formation", "matcher"}


def strategy(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    named_in: Place | None = None,
    unit: Literal["record", "device"] | None = None,
) -> Strategy:
    """The preset with these settings laid over it; a name that is none is refused with the nearest.

    `unit` is what the privacy terms hide, None without terms: a preset may take other parts for it.
    """
    place = Place(f"preset {name}")
    if name not in PRESETS:
        raise (named_in or Place("presets")).unknown("preset", name, PRESETS)
    table = table_of(name, overrides or {}, unit)
    given = Reader(Path(), PARTS).settings(table, place, Strategy, without={"name"})
    objective, aggregator = given.get("objective"), given.get("aggregator")
    if isinstance(objective, SparseMasked) and isinstance(aggregator, CasaDecay):
        # How much a late answer counts is one setting, not two.
        given["objective"] = replace(objective, aggregator=aggregator)
    return Strategy(name=name, **given)


def table_of(name: str, overrides: Mapping[str, Any], unit: Literal["record", "device"] | None) -> Table:
    """What a preset comes to, spelled out as data."""
    table: Table = _laid_over(_under(name, overrides, unit), overrides)
    return table


def _under(name: str, overrides: Mapping[str, Any], unit: str | None) -> Table:
    """The preset's table for these terms; of a part that is spoken of, the usual one is what settings are laid over."""
    instead = UNDER_TERMS.get(unit, {}).get(name, {}) if unit else {}
    usual = set(overrides) | (_GO_TOGETHER if _GO_TOGETHER & set(overrides) else set())
    return {**PRESETS[name], **{part: value for part, value in instead.items() if part not in usual}}


def _laid_over(below: Any, above: Any) -> Any:
    """Tables are merged; another kind of part replaces the one below with all its settings."""
    if not isinstance(above, Mapping):
        return copy.deepcopy(above)
    if isinstance(below, str):
        below = {"kind": below}
    if not isinstance(below, Mapping) or ("kind" in above and above["kind"] != below.get("kind")):
        below = {}
    merged = dict(copy.deepcopy(dict(below)))
    for key, value in above.items():
        merged[key] = _laid_over(merged.get(key), value)
    return merged
