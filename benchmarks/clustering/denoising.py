"""How well devices find their like under noise, by estimator: share of nearest neighbours of the own kind / ARI.

    python -m benchmarks.clustering.denoising

HACCS' fleets (70/10/10/10) with as many groups as labels and `--per-group` devices in each; average linkage into the
true number of groups. Clip and normalise is what HACCS does.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from benchmarks.clustering.alone import printed_table
from benchmarks.clustering.fleets import label_histograms
from server_kit.clustering import (
    Estimator,
    UnbiasedCosineRows,
    adjusted_rand_index,
    denoised,
    hellinger_points,
)

CASES = [
    (10, 100, 0.05),
    (10, 100, 0.1),
    (10, 500, 0.02),
    (10, 1000, 0.01),
    (62, 100, 0.1),
    (62, 500, 0.02),
    (62, 1000, 0.01),
    (62, 500, 0.05),
    (10, 10, 4.0),
]
METHODS = [*(str(name) for name in Estimator), "unbiased cosine"]


def distances(noised, scale, method):
    if method == "unbiased cosine":
        rows = UnbiasedCosineRows(noised, scale)
        return np.stack([rows.row(device) for device in range(len(rows))])
    points = hellinger_points(denoised(noised, scale, Estimator(method))).double()
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").numpy()


def score(between, truth):
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    merges = linkage(squareform((between + between.T) / 2, checks=False), "average")
    labels = fcluster(merges, len(np.unique(truth)), criterion="maxclust")
    np.fill_diagonal(between, np.inf)
    return (truth[between.argmin(axis=1)] == truth).mean(), adjusted_rand_index(labels.astype(np.int64), truth)


def measure(bins, records, epsilon, per_group, seeds):
    row = {"bins": bins, "records": records, "epsilon": epsilon}
    fleets = [label_histograms(per_group * bins, bins, records, epsilon, seed) for seed in range(seeds)]
    for method in METHODS:
        scores = [score(distances(torch.from_numpy(c).long(), 1 / epsilon, method), truth) for c, truth in fleets]
        neighbours, ari = np.mean(scores, axis=0)
        row[method] = f"{neighbours:.2f} / {ari:.2f}"
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--per-group", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(*case, given.per_group, given.seeds) for case in CASES]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    plain = [("labels", "bins", "{}"), ("records", "records", "{:,}"), ("epsilon", "epsilon", "{:g}")]
    printed_table(rows, plain + [(method, method, "{}") for method in METHODS])


if __name__ == "__main__":
    main()
