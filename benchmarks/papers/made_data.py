"""Data that the experiments need beside the data sets themselves, made from those.

python -m benchmarks.papers.made_data DATA DATA

mnist_writers_14, mnist_writers_7: the same images at a half and a quarter of their size, so that 2,000 runs fit into
hours on two cores, and so that a model is small enough for noise at device level. speakers_35: 500 speakers with as
many records of 35 kinds as each of them has of 35 spoken words; the records are images, for want of the recordings.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPEAKERS = 500

Images = NDArray[np.uint8]
Arrays = dict[str, NDArray[Any]]


def pooled(images: Images, by: int) -> Images:
    """The mean of each square of `by` x `by` pixels."""
    count, height, width = images.shape
    squares = images.reshape(count, height // by, by, width // by, by)
    return squares.mean(axis=(2, 4)).round().astype(np.uint8)


def kinds_of_images(digits: Arrays, clothes: Arrays, kinds: int) -> list[Images]:
    """Digits, clothes, and both upside down and in negative: as many kinds as there are words."""
    plain = [source["x"][source["y"] == label] for source in (digits, clothes) for label in range(10)]
    return [*plain, *(255 - images[:, ::-1] for images in plain)][:kinds]


def dealt(kinds: list[Images], counts: NDArray[Any]) -> Arrays:
    """Each speaker gets so many of each kind, none twice while there are enough."""
    images, labels, users = [], [], []
    for label, pool in enumerate(kinds):
        owners = np.repeat(np.arange(len(counts)), counts[:, label])
        images.append(pool[np.arange(len(owners)) % len(pool)])
        labels.append(np.full(len(owners), label, dtype=np.uint8))
        users.append(owners.astype(np.int32))
    # A device's last records are kept for testing, so they must not be those of the last kinds.
    order = np.random.default_rng(0).permutation(sum(map(len, labels)))
    x, y, user = (np.concatenate(parts)[order] for parts in (images, labels, users))
    return {"x": x, "y": y, "user": user, "classes": np.arange(len(kinds))}


def write(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder with mnist_writers, fashion_mnist and client_stats")
    parser.add_argument("target", type=Path, help="where the new files go")
    arguments = parser.parse_args()
    digits = read(arguments.source / "mnist_writers.npz")
    for by in (2, 4):
        write(arguments.target / f"mnist_writers_{28 // by}.npz", {**digits, "x": pooled(digits["x"], by)})
    counts = read(arguments.source / "client_stats.npz")["speech_label_counts"][:SPEAKERS]
    kinds = kinds_of_images(digits, read(arguments.source / "fashion_mnist.npz"), counts.shape[1])
    speakers = dealt(kinds, counts)
    write(arguments.target / "speakers_35.npz", {**speakers, "x": pooled(speakers["x"], 2)})


if __name__ == "__main__":
    main()
