"""Ours, as a researcher calls it: `python -m benchmarks.speed.run_covey DATA MODEL ROUNDS EPOCHS`.

The whole engine: check-ins, selection, virtual time, every update looked at and folded by itself. `run_kernels` is the
training alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.speed import workload
from server_kit.aggregation import FedAvg
from server_kit.interfaces import Memory, Updates
from server_kit.simulation import Cnn, LocalTask, Mlp, Point, Population, RunSettings, simulate
from server_kit.simulation.datasets.dataset import TRAIN, Dataset
from server_kit.simulation.partition import GivenSplit, NaturalUsers
from server_kit.strategy import Strategy


@dataclass
class Watched:
    """FedAvg that shows its models to the clock."""

    plain: FedAvg = field(default_factory=FedAvg)
    model: Tensor | None = None

    def aggregate(self, model: Tensor, updates: Updates, memory: Memory) -> Tensor:
        self.model = self.plain.aggregate(model, updates, memory)
        return self.model


def main(folder: Path, name: str, rounds: int, epochs: int) -> None:
    clock = workload.Clock("covey")
    inputs, labels = workload.read_data(folder)
    spec = _beginning_with(workload.build_model(name), Mlp if name == "mlp" else Cnn)
    users = np.repeat(np.arange(workload.DEVICES), workload.SAMPLES)
    everything = Dataset(inputs[:, 0].numpy(), labels.numpy(), users, split=np.full(len(users), TRAIN))
    population = Population(everything, NaturalUsers(), workload.DEVICES, holdout=GivenSplit())
    strategy = Strategy("fedavg", aggregator=(watched := Watched()))
    settings = RunSettings(
        rounds=rounds + 1,
        participants=workload.PER_ROUND,
        evaluate_every=1,
        evaluated_devices=1,  # it has no test samples: this only tells the time
        task=LocalTask(workload.LEARNING_RATE, batch_size=workload.BATCH, epochs=epochs),
    )

    def loss() -> float:
        return workload.loss_of(spec.module(watched.model), inputs, labels)

    def on_point(point: Point) -> None:
        if point.progress.round:
            clock.round_ended(loss)

    simulate(population, strategy, spec, settings, on_point=on_point)
    clock.measurement().tell()


def _beginning_with(module: nn.Module, kind: type[Mlp | Cnn]) -> Mlp | Cnn:
    """A model that begins with the weights that all systems are given."""
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return type("Given", (kind,), {"initial": lambda self, seed: weights.clone()})()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
