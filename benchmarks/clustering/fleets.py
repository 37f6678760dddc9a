"""Fleets of label histograms as in HACCS: a majority label of 70 % and three minor ones of 10 %, drawn at random."""

from __future__ import annotations

import numpy as np

MIX = (0.7, 0.1, 0.1, 0.1)
DEVICES_AT_ONCE = 10_000


def label_histograms(devices, bins, records, epsilon=None, seed=0):
    """Counts (int32), with discrete Laplace noise of scale 1/ε if ε is given, and the majority labels."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(bins, size=devices)
    counts = np.empty((devices, bins), dtype=np.int32)
    for start in range(0, devices, DEVICES_AT_ONCE):
        block = slice(start, start + DEVICES_AT_ONCE)
        counts[block] = _counts(truth[block], bins, records, epsilon, rng)
    return counts, truth


def _counts(majority, bins, records, epsilon, rng):
    places = rng.random((len(majority), bins))
    places[np.arange(len(majority)), majority] = -1  # the majority label comes first
    chosen = np.argsort(places, axis=1)[:, : len(MIX)]
    shares = np.zeros((len(majority), bins))
    np.put_along_axis(shares, chosen, np.array(MIX)[None], axis=1)
    counts = rng.multinomial(records, shares)
    if epsilon is not None:
        stop = 1 - np.exp(-epsilon)
        counts = counts + rng.geometric(stop, counts.shape) - rng.geometric(stop, counts.shape)
    return counts
