"""The names that rules go by in an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_kit.reading import Kinds
from server_kit.simulation.attacks import Attack, Backdoor, Replacement, SignFlip
from server_kit.simulation.availability import Always, Availability, Diurnal, DropOut, OnOff, TracedSessions
from server_kit.simulation.datasets import (
    DataSource,
    Digits,
    IdxFiles,
    LabelCountsFile,
    LeafFolder,
    NpzFile,
    Synthetic,
    read_sizes,
)
from server_kit.simulation.device_speeds import FactorSpeeds, HaccsSpeeds, Speeds, TracedSpeeds, UniformSpeeds
from server_kit.simulation.partition import (
    ClassesPerDevice,
    Dirichlet,
    DrawnSizes,
    Equal,
    GivenLabelCounts,
    GivenSizes,
    GivenSplit,
    Holdout,
    Iid,
    LabelPermutationGroups,
    LastFraction,
    LogNormal,
    MajorityMix,
    NaturalUsers,
    PartitionRule,
    PowerLaw,
    RotationGroups,
    Sizes,
    WholeBlocks,
)


def given_label_counts(path: Path, array: str = "speech_label_counts") -> GivenLabelCounts:
    """Devices with the label counts of real ones, from an array of an `.npz` file."""
    return GivenLabelCounts(LabelCountsFile(path, array).load())


def drawn_sizes(path: Path, array: str, mean_samples: float | None = None, least: int = 1) -> DrawnSizes:
    """Sizes of real devices, from an array of an `.npz` file."""
    return DrawnSizes(read_sizes(path, array), mean_samples, least)


KINDS: Mapping[Any, Kinds] = {
    Attack: {
        "backdoor": Backdoor,
        "replacement": Replacement,
        "sign_flip": SignFlip,
    },
    DataSource: {
        "digits": Digits,
        "synthetic": Synthetic,
        "idx": IdxFiles,
        "leaf": LeafFolder,
        "npz": NpzFile,
    },
    PartitionRule: {
        "classes_per_device": ClassesPerDevice,
        "dirichlet": Dirichlet,
        "given_label_counts": given_label_counts,
        "iid": Iid,
        "label_permutation": LabelPermutationGroups,
        "majority_mix": MajorityMix,
        "natural_users": NaturalUsers,
        "rotation": RotationGroups,
    },
    Sizes: {
        "drawn": drawn_sizes,
        "equal": Equal,
        "given": GivenSizes,
        "log_normal": LogNormal,
        "power_law": PowerLaw,
    },
    Holdout: {
        "given_split": GivenSplit,
        "last_fraction": LastFraction,
        "whole_blocks": WholeBlocks,
    },
    Speeds: {
        "factors": FactorSpeeds,
        "haccs": HaccsSpeeds,
        "traced": TracedSpeeds,
        "uniform": UniformSpeeds,
    },
    Availability: {
        "always": Always,
        "diurnal": Diurnal,
        "drop_out": DropOut,
        "on_off": OnOff,
        "traced": TracedSessions,
    },
}
"""For each protocol of a population, its built-in rules."""
