"""What each record of a simulated device would choose among models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from device_sdk.ballot import Ballot

if TYPE_CHECKING:
    from server_kit.simulation.population import Samples
    from server_kit.simulation.training.bench import Bench


def votes(bench: Bench, models: torch.Tensor, samples: Samples) -> list[int]:
    """For each record the number of the model, of [k, size], that it votes for: counted as devices do."""
    if not len(samples.y):
        return []
    choices = len(models)
    features = torch.from_numpy(samples.x).reshape(1, len(samples.y), -1).expand(choices, -1, -1).contiguous()
    targets = torch.from_numpy(samples.y).long().expand(choices, -1)
    losses = bench.losses(bench.outputs(models, features), targets).view(choices, -1)
    ballot = Ballot(len(samples.y))
    for choice, row in enumerate(losses.numpy()):
        ballot.cast(choice, row)
    return ballot.votes
