"""A newcomer joins the nearest known device within eps, or starts a cluster of its own; nobody else moves.

Devices are placed one after another, so that a newcomer can join one that came just before. Where a newcomer
would connect two clusters, only clustering anew would merge them: until then it belongs to the nearer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from server_kit.clustering.checks import require_same_length, require_vectors
from server_kit.clustering.partition import UNLABELLED, Labels, as_labels
from server_kit.errors import InvalidSetting, InvalidSummary

Lengths = npt.NDArray[np.float64]

NEWCOMERS_AT_ONCE = 512
KNOWN_AT_ONCE = 1 << 16


def placed(newcomers: torch.Tensor, known: torch.Tensor, labels: Labels, eps: float) -> Labels:
    """A label for each newcomer: that of the nearest of `known` (devices or centres) within `eps`, or a new one."""
    require_vectors(newcomers, "newcomers")
    require_vectors(known, "known points")
    require_same_length(len(known), len(labels), "known points and labels")
    if newcomers.shape[1] != known.shape[1]:
        raise InvalidSummary("newcomers and known points differ in their number of coordinates; nobody was placed")
    if not eps >= 0:
        raise InvalidSetting(f"eps is a distance, 0 or more, got {eps:g}; nobody was placed")
    given = as_labels(labels)
    found = np.empty(0, dtype=np.int64)
    for block in torch.split(newcomers, NEWCOMERS_AT_ONCE):
        candidates = [_nearest(block, known, given)]
        if len(found):
            candidates.append(_nearest(block, newcomers[: len(found)], found))
        next_free = max(given.max(initial=-1), found.max(initial=-1)) + 1
        found = np.concatenate([found, _in_turn(block, candidates, int(next_free), eps)])
    return found


def _nearest(block: torch.Tensor, known: torch.Tensor, labels: Labels) -> tuple[Labels, Lengths]:
    """For each point of the block the label of the nearest known point, the first of equals, and its distance."""
    best = torch.full((len(block),), torch.inf, dtype=torch.float64, device=block.device)
    label = torch.full((len(block),), UNLABELLED, dtype=torch.int64, device=block.device)
    for there, theirs in zip(
        torch.split(known, KNOWN_AT_ONCE), torch.split(torch.from_numpy(labels), KNOWN_AT_ONCE), strict=True
    ):
        distance, position = torch.cdist(block.double(), there.double()).min(dim=1)
        label = torch.where(distance < best, theirs.to(block.device)[position], label)
        best = torch.minimum(best, distance)
    return label.cpu().numpy(), best.cpu().numpy()


def _in_turn(block: torch.Tensor, candidates: list[tuple[Labels, Lengths]], next_free: int, eps: float) -> Labels:
    """Place the devices of one block one after another, after all that were placed before."""
    among = torch.cdist(block.double(), block.double()).cpu().numpy()
    found = np.empty(len(block), dtype=np.int64)
    for device in range(len(block)):
        options = [(distances[device], labels[device]) for labels, distances in candidates]
        if device:
            before = int(among[device, :device].argmin())
            options.append((among[device, before], found[before]))
        distance, label = min(options, key=lambda option: option[0])
        found[device] = label if distance <= eps else next_free
        next_free = max(next_free, int(found[device]) + 1)
    return found
