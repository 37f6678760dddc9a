"""Clustering the label histograms of a whole fleet.

We want 100,000 devices within 20 s and 1.5 GiB, a million within 5 min and 8 GiB, and an agreement (ARI) of 0.99
with scikit-learn's exact OPTICS on 5,000 of them.

    python -m benchmarks.clustering.label_histograms --devices 100000 --bins 10 62 --epsilon none 0.5 0.1

Each row is measured in a process of its own; memory includes the interpreter, its packages and the histograms.
CPU seconds tell more than seconds on a machine that is not idle. `exact` is scikit-learn's OPTICS with a k-d tree at
the distance that we chose, `ours` what we take for the same sample by the path for large fleets.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from benchmarks.clustering.alone import measured_alone, peak_mebibytes, printed_table, stopwatch
from benchmarks.clustering.fleets import label_histograms
from server_kit.clustering import (
    AutomaticEps,
    HistogramDistance,
    Optics,
    adjusted_rand_index,
    histogram_points,
)
from server_kit.clustering.partition import with_noise_as_singletons

COLUMNS = [
    ("devices", "devices", "{:,}"),
    ("bins", "bins", "{}"),
    ("epsilon", "epsilon", "{:g}"),
    ("seconds", "cluster_seconds", "{:.1f}"),
    ("CPU s", "cluster_cpu_seconds", "{:.1f}"),
    ("peak MiB", "peak_mebibytes", "{:,.0f}"),
    ("clusters", "clusters", "{:,}"),
    ("eps", "eps", "{:.3f}"),
    ("ARI truth", "ari_truth", "{:.4f}"),
    ("ARI exact", "ari_exact", "{:.4f}"),
    ("exact s", "exact_seconds", "{:.1f}"),
    ("ours s", "ours_seconds", "{:.2f}"),
]


def clustered(counts, case):
    """What a server does with the counts: denoise, embed, cluster, at any number of devices by the large path."""
    scale = None if case["epsilon"] is None else 1 / case["epsilon"]
    embedded = histogram_points(counts, HistogramDistance(case["distance"]), scale)
    rule = AutomaticEps(resolution=embedded.resolution)
    rng = np.random.default_rng(case["seed"])
    return embedded.points, Optics(rule, exact_up_to=0).cluster(embedded.points, rng)


def measure(case):
    """One fleet: time and memory of the whole, agreement with the truth."""
    if case["threads"]:
        torch.set_num_threads(case["threads"])
    counts, truth = label_histograms(case["devices"], case["bins"], case["records"], case["epsilon"], case["seed"])
    if case["sample"]:
        return against_exact(counts[: case["sample"]], case)
    row: dict[str, float] = {}
    with stopwatch(row, "cluster"):
        _, found = clustered(counts, case)
    ari = adjusted_rand_index(found.labels, truth)
    return row | {
        "peak_mebibytes": peak_mebibytes(),
        "clusters": found.count,
        "eps": found.evidence.eps,
        "ari_truth": ari,
    }


def against_exact(counts, case):
    """A sample of the fleet by our path for large fleets, and by scikit-learn's OPTICS."""
    from sklearn.cluster import OPTICS

    row: dict[str, float] = {}
    with stopwatch(row, "ours"):
        points, found = clustered(counts, case)
    optics = OPTICS(min_samples=2, cluster_method="dbscan", eps=found.evidence.eps, algorithm="kd_tree")
    with stopwatch(row, "exact"):
        exact = optics.fit(points.double().numpy()).labels_
    return row | {"ari_exact": adjusted_rand_index(found.labels, with_noise_as_singletons(exact))}


def epsilon_or_none(text):
    return None if text == "none" else float(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[100_000])
    parser.add_argument("--bins", type=int, nargs="+", default=[10, 62])
    parser.add_argument("--epsilon", type=epsilon_or_none, nargs="+", default=[None, 0.5, 0.1], metavar="E|none")
    parser.add_argument("--records", type=int, default=500, help="on each device")
    parser.add_argument("--distance", choices=[str(name) for name in HistogramDistance], default="l2")
    parser.add_argument("--sample", type=int, default=5_000, help="devices for exact OPTICS; 0 leaves it out")
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
    common = {name: getattr(given, name) for name in ("records", "distance", "threads", "seed")}
    rows = []
    for devices in given.devices:
        for bins in given.bins:
            for epsilon in given.epsilon:
                fleet = {"devices": devices, "bins": bins, "epsilon": epsilon}
                row = measured_alone("benchmarks.clustering.label_histograms", fleet | common | {"sample": 0})
                if given.sample:
                    sample = fleet | common | {"devices": given.sample, "sample": given.sample}
                    row |= measured_alone("benchmarks.clustering.label_histograms", sample)
                rows.append(fleet | row)
    if given.json:
        print(json.dumps(rows, indent=2))
    else:
        printed_table(rows, COLUMNS)


if __name__ == "__main__":
    main()
