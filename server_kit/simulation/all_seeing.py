"""A server that sees what no server can: how its models do on every device, and how long each would take.

HACCS's released code tests every device in every round and is given the speeds that it simulates. With
`RunSettings.all_seeing` every contender of an experiment is; else a server knows what devices have told and shown.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from server_kit.federation import Federation
    from server_kit.simulation.fleet import SimulatedFleet


def reveal(federation: Federation, fleet: SimulatedFleet) -> None:
    """Put every known device's loss under its own leaf's model, and its latency in this round, into its view."""
    views = federation.state.views
    devices = list(views)
    if not devices:
        return
    with fleet.in_private():
        homes = federation.homes(devices)
    leaves = sorted(set(homes))
    models = torch.stack([federation.model(leaf) for leaf in leaves])
    records = fleet.population.device_data("train", fleet.round)
    losses = fleet.trainer.evaluate(models, records, devices, model_of=[leaves.index(home) for home in homes]).losses
    latencies = fleet.latencies_seconds(devices, federation.task, models.shape[1])
    for device, loss, seconds in zip(devices, losses.tolist(), latencies.tolist(), strict=True):
        # A device without records has no loss.
        views[device] = replace(views[device], loss=None if math.isnan(loss) else loss, latency_seconds=seconds)
