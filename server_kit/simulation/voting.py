"""What each record of a simulated device would choose among models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from server_kit.simulation.population import Samples
    from server_kit.simulation.training.bench import Bench


def votes(bench: Bench, models: torch.Tensor, samples: Samples) -> list[int]:
    """For each record the model [k, size] with the least loss on it; a loss that is not finite wins no vote."""
    if not len(samples.y):
        return []
    choices = len(models)
    features = torch.from_numpy(samples.x).reshape(1, len(samples.y), -1).expand(choices, -1, -1).contiguous()
    targets = torch.from_numpy(samples.y).long().expand(choices, -1)
    losses = bench.losses(bench.outputs(models, features), targets).view(choices, -1)
    favourites: list[int] = losses.nan_to_num(torch.inf).argmin(dim=0).tolist()
    return favourites
