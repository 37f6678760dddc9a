"""FedGroup's directions of many long updates: we want 400 x 1.7 million in seconds, in about the memory of the input.

    python -m benchmarks.clustering.gram --devices 400 --weights 1700000 --peer

`--peer` measures, beside it, what the released code of FedGroup does: a truncated SVD of the updates side by side, by
scikit-learn, and cosines to its components. Each runs in a process of its own on the same updates.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from benchmarks.clustering.alone import measured_alone, peak_mebibytes, printed_table, stopwatch
from server_kit.clustering import KMeans, TernaryCosine, adjusted_rand_index

COLUMNS = [
    ("method", "method", "{}"),
    ("devices", "devices", "{:,}"),
    ("weights", "weights", "{:,}"),
    ("seconds", "cluster_seconds", "{:.1f}"),
    ("CPU s", "cluster_cpu_seconds", "{:.1f}"),
    ("input MiB", "input_mebibytes", "{:,.0f}"),
    ("added MiB", "added_mebibytes", "{:,.0f}"),
    ("ARI truth", "ari_truth", "{:.3f}"),
]


def updates_of_groups(devices, weights, groups, seed):
    """float32 updates with a direction of their group and noise of nine times its variance, and the groups."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((groups, weights), dtype=np.float32)
    truth = rng.integers(groups, size=devices)
    updates = np.empty((devices, weights), dtype=np.float32)
    for device, group in enumerate(truth):
        rng.standard_normal(dtype=np.float32, out=updates[device])
        updates[device] *= 3
        updates[device] += directions[group]
    return updates, truth


def labels_by_truncated_svd(updates, groups, rng):
    from sklearn.decomposition import TruncatedSVD

    components = TruncatedSVD(3, random_state=0).fit_transform(updates.T)
    cosines = updates @ components / np.linalg.norm(updates, axis=1, keepdims=True)
    cosines /= np.linalg.norm(components, axis=0)
    return KMeans(groups).cluster(torch.from_numpy((1 - cosines) / 2), rng).labels


def measure(case):
    if case["threads"]:
        torch.set_num_threads(case["threads"])
    updates, truth = updates_of_groups(case["devices"], case["weights"], case["groups"], case["seed"])
    row: dict[str, float] = {}
    before, rng = peak_mebibytes(), np.random.default_rng(case["seed"])
    with stopwatch(row, "cluster"):
        if case["method"] == "gram":
            labels = TernaryCosine(case["groups"]).cluster(torch.from_numpy(updates), rng).labels
        else:
            labels = labels_by_truncated_svd(updates, case["groups"], rng)
    return row | {
        "input_mebibytes": updates.nbytes / (1 << 20),
        "added_mebibytes": peak_mebibytes() - before,
        "ari_truth": adjusted_rand_index(labels, truth),
    }


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=400)
    parser.add_argument("--weights", type=int, default=1_700_000)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="also measure the truncated SVD")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves its choice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    given = arguments()
    if given.case:
        print(json.dumps(measure(given.case)))
        return
    case = {name: getattr(given, name) for name in ("devices", "weights", "groups", "threads", "seed")}
    methods = ["gram", "truncated SVD"] if given.peer else ["gram"]
    rows = [
        case | {"method": method} | measured_alone("benchmarks.clustering.gram", case | {"method": method})
        for method in methods
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
    else:
        printed_table(rows, COLUMNS)


if __name__ == "__main__":
    main()
