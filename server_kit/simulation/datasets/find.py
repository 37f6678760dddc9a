"""From the name in an experiment's settings to the data: `digits` needs no file, others lie in `data_dir`."""

from __future__ import annotations

from pathlib import Path

from server_kit.simulation.datasets.dataset import DataSource
from server_kit.simulation.datasets.digits import Digits
from server_kit.simulation.datasets.errors import DatasetNotFound
from server_kit.simulation.datasets.idx import IdxFiles, looks_like_idx
from server_kit.simulation.datasets.leaf import LeafFolder, leaf_files
from server_kit.simulation.datasets.npz import NpzFile
from server_kit.simulation.datasets.synthetic import Synthetic


def find_dataset(name: str, data_dir: Path | None = None) -> DataSource:
    """`digits`, `synthetic`, or what lies in `data_dir`: NAME.npz, or a folder NAME with idx or LEAF files."""
    if name == "digits":
        return Digits()
    if name == "synthetic":
        return Synthetic()
    if data_dir is None or Path(name).name != name:
        raise DatasetNotFound(f"dataset {name!r} not found; give data_dir or use dataset = 'digits'; nothing was read")
    file, folder = data_dir / f"{name}.npz", data_dir / name
    if file.is_file():
        return NpzFile(file)
    if looks_like_idx(folder):
        return IdxFiles(folder)
    if leaf_files(folder):
        return LeafFolder(folder)
    raise DatasetNotFound(
        f"dataset {name!r} not found in {data_dir} (neither {file.name} nor a folder with idx or LEAF files); "
        "give data_dir or use dataset = 'digits'; nothing was read"
    )
