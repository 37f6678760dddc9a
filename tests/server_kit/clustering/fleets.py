"""Small synthetic fleets with a known truth, and partitions compared as partitions."""

from __future__ import annotations

import numpy as np
import torch

HACCS_MIX = (0.7, 0.1, 0.1, 0.1)


def label_counts(devices, labels, records, seed=0):
    """Devices with a majority label (the truth) and three random minor ones, as in HACCS."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(labels, size=devices)
    counts = np.empty((devices, labels), dtype=np.int64)
    for device, majority in enumerate(truth):
        minor = rng.choice(np.delete(np.arange(labels), majority), len(HACCS_MIX) - 1, replace=False)
        shares = np.zeros(labels)
        shares[[majority, *minor]] = HACCS_MIX
        counts[device] = rng.multinomial(records, shares)
    return counts, truth


def iid_counts(devices, labels, records, seed=0):
    """Devices that all draw from one distribution."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(records, rng.dirichlet(np.ones(labels)), size=devices)


def with_discrete_laplace(counts, scale, seed=0):
    """The counts as a device would release them."""
    rng = np.random.default_rng([seed, 1])
    stop = 1 - np.exp(-1 / scale)
    return counts + rng.geometric(stop, counts.shape) - rng.geometric(stop, counts.shape)


def grouped_updates(groups, per_group, length, *, noise, seed=0, common=0.0):
    """Updates that point along their group's direction, with noise, and with a direction that all share."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(length, groups + 1)))[0].T
    truth = np.repeat(np.arange(groups), per_group)
    updates = directions[truth] + common * directions[groups] + noise * rng.normal(size=(len(truth), length))
    shuffled = rng.permutation(len(truth))
    return torch.from_numpy(updates[shuffled]), truth[shuffled]


def same_partition(first, second):
    """Whether two labellings say the same about who is together with whom."""
    pairs = {*zip(np.asarray(first).tolist(), np.asarray(second).tolist(), strict=True)}
    return len(pairs) == len(set(np.asarray(first).tolist())) == len(set(np.asarray(second).tolist()))


def refines(fine, coarse):
    """Whether each cluster of `fine` lies within one of `coarse`."""
    pairs = {*zip(np.asarray(fine).tolist(), np.asarray(coarse).tolist(), strict=True)}
    return len(pairs) == len(set(np.asarray(fine).tolist()))


def generator(seed=0):
    return np.random.default_rng(seed)
