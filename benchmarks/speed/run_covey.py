"""Ours, as a researcher calls it: `python -m benchmarks.speed.run_covey DATA MODEL ROUNDS EPOCHS [record]`.

The whole engine: check-ins, selection, virtual time, training and the fold. `run_kernels` is the training alone;
`record` asks for privacy of records, see `dp`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.speed import workload
from server_kit.aggregation import FedAvg
from server_kit.interfaces import Memory, Updates
from server_kit.simulation import Cnn, LocalTask, Mlp, Population, PrivacyTerms, RunSettings, simulate
from server_kit.simulation.datasets.dataset import TRAIN, Dataset
from server_kit.simulation.partition import GivenSplit, NaturalUsers
from server_kit.strategy import Strategy


@dataclass(frozen=True)
class Watched:
    """FedAvg that tells when it has made a model: like the others, this run tests none of them in between."""

    on_model: Callable[[Tensor], None]
    plain: FedAvg = field(default_factory=FedAvg)

    def aggregate(self, model: Tensor, updates: Updates, memory: Memory) -> Tensor:
        made = self.plain.aggregate(model, updates, memory)
        self.on_model(made)
        return made


def main(folder: Path, name: str, rounds: int, epochs: int, privacy: PrivacyTerms | None = None) -> None:
    clock = workload.Clock("covey")
    inputs, labels = workload.read_data(folder)
    spec = _beginning_with(workload.build_model(name), Mlp if name == "mlp" else Cnn)
    users = np.repeat(np.arange(workload.DEVICES), workload.SAMPLES)
    everything = Dataset(inputs[:, 0].numpy(), labels.numpy(), users, split=np.full(len(users), TRAIN))
    population = Population(everything, NaturalUsers(), workload.DEVICES, holdout=GivenSplit())
    settings = RunSettings(
        rounds=rounds + 1,
        participants=workload.PER_ROUND,
        evaluate_every=rounds + 1,
        evaluated_devices=1,
        task=LocalTask(workload.LEARNING_RATE, batch_size=workload.BATCH, epochs=epochs),
        privacy=privacy,
    )

    def loss(model: Tensor) -> float:
        return workload.loss_of(spec.module(model), inputs, labels)

    watched = Watched(lambda model: clock.round_ended(partial(loss, model)))
    simulate(population, Strategy("fedavg", aggregator=watched), spec, settings)
    clock.measurement().tell()


def _beginning_with(module: nn.Module, kind: type[Mlp | Cnn]) -> Mlp | Cnn:
    """A model that begins with the weights that all systems are given."""
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return type("Given", (kind,), {"initial": lambda self, seed: weights.clone()})()


if __name__ == "__main__":
    record_level = sys.argv[5:] == ["record"]
    main(
        *(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])),
        privacy=PrivacyTerms(participations=40) if record_level else None,
    )
