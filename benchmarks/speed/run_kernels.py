"""Our training alone, without the engine: `python -m benchmarks.speed.run_kernels DATA MODEL ROUNDS EPOCHS`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.speed import workload
from server_kit.simulation.training import Cnn, DeviceData, LocalTask, Mlp, Trainer


def main(folder: Path, name: str, rounds: int, epochs: int) -> None:
    clock = workload.Clock("kernels")
    inputs, labels = workload.read_data(folder)
    data = DeviceData.equal_parts(inputs, labels, workload.DEVICES)
    spec = Mlp() if name == "mlp" else Cnn()
    task = LocalTask(workload.LEARNING_RATE, batch_size=workload.BATCH, epochs=epochs)
    module = workload.build_model(name)
    model = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    workers = torch.get_num_threads()
    torch.set_num_threads(1)  # the aggregation below must not fight with the workers for the cores

    def loss(model: Tensor) -> float:
        return workload.loss_of(spec.module(model), inputs, labels)

    with Trainer(spec, workers=workers) as trainer:
        for number in range(rounds + 1):
            devices = [str(device) for device in workload.cohort(number)]
            total = torch.zeros_like(model)
            shares = [1 / workload.PER_ROUND] * len(devices)
            for part in trainer.sum_in_chunks(model, data, devices, task, shares=shares, seed=1, round_number=number):
                total += part.total
            model += total
            clock.round_ended(partial(loss, model))
    clock.measurement().tell()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
