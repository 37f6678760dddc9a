"""Data for simulated devices: bundled, generated, or read from files without running anything in them."""

from __future__ import annotations

from server_kit.simulation.datasets.dataset import Dataset, DataSource
from server_kit.simulation.datasets.digits import Digits
from server_kit.simulation.datasets.errors import DatasetNotFound, InvalidDataset
from server_kit.simulation.datasets.find import find_dataset
from server_kit.simulation.datasets.idx import IdxFiles
from server_kit.simulation.datasets.label_counts import LabelCounts, LabelCountsFile, count_labels, read_sizes
from server_kit.simulation.datasets.leaf import LeafFolder
from server_kit.simulation.datasets.npz import NpzFile
from server_kit.simulation.datasets.synthetic import Synthetic

__all__ = [
    "DataSource",
    "Dataset",
    "DatasetNotFound",
    "Digits",
    "IdxFiles",
    "InvalidDataset",
    "LabelCounts",
    "LabelCountsFile",
    "LeafFolder",
    "NpzFile",
    "Synthetic",
    "count_labels",
    "find_dataset",
    "read_sizes",
]
