"""How the samples of a data set are dealt to devices: rules as plain data, each with one method, `assign`."""

from __future__ import annotations

from server_kit.simulation.partition.assignment import Partition, PartitionRule
from server_kit.simulation.partition.groups import LabelPermutationGroups, RotationGroups
from server_kit.simulation.partition.holdout import GivenSplit, Holdout, LastFraction, WholeBlocks
from server_kit.simulation.partition.label_skew import ClassesPerDevice, Dirichlet, GivenLabelCounts, MajorityMix
from server_kit.simulation.partition.sizes import DrawnSizes, Equal, GivenSizes, LogNormal, PowerLaw, Sizes
from server_kit.simulation.partition.whole import Iid, NaturalUsers

__all__ = [
    "ClassesPerDevice",
    "Dirichlet",
    "DrawnSizes",
    "Equal",
    "GivenLabelCounts",
    "GivenSizes",
    "GivenSplit",
    "Holdout",
    "Iid",
    "LabelPermutationGroups",
    "LastFraction",
    "LogNormal",
    "MajorityMix",
    "NaturalUsers",
    "Partition",
    "PartitionRule",
    "PowerLaw",
    "RotationGroups",
    "Sizes",
    "WholeBlocks",
]
