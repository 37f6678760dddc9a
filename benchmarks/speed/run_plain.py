"""The plain torch loop, a process for each core: `python -m benchmarks.speed.run_plain DATA MODEL ROUNDS EPOCHS`."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.speed import workload


def worker(pipe: Connection, folder: Path, name: str, epochs: int) -> None:
    torch.set_num_threads(1)
    inputs, labels = workload.read_data(folder)
    model = workload.build_model(name)
    while True:
        start, devices = pipe.recv()
        if start is None:
            return
        total = torch.zeros_like(start)
        for device in devices:
            vector_to_parameters(start.clone(), model.parameters())
            own = slice(device * workload.SAMPLES, (device + 1) * workload.SAMPLES)
            workload.train_locally(model, inputs[own], labels[own], epochs)
            total += parameters_to_vector(model.parameters()).detach() - start
        pipe.send(total)


def main(folder: Path, name: str, rounds: int, epochs: int) -> None:
    clock = workload.Clock("plain loop")
    module = workload.build_model(name)
    model: Tensor = parameters_to_vector(module.parameters()).detach().clone()
    inputs, labels = workload.read_data(folder)
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(os.cpu_count() or 1):
        ours, theirs = context.Pipe()
        context.Process(target=worker, args=(theirs, folder, name, epochs), daemon=True).start()
        pipes.append(ours)
    torch.set_num_threads(1)

    def loss() -> float:
        vector_to_parameters(model.clone(), module.parameters())
        return workload.loss_of(module, inputs, labels)

    for number in range(rounds + 1):
        devices = workload.cohort(number)
        for i, pipe in enumerate(pipes):
            pipe.send((model, devices[i :: len(pipes)]))
        model = model + sum(pipe.recv() for pipe in pipes) / workload.PER_ROUND
        clock.round_ended(loss)
    for pipe in pipes:
        pipe.send((None, []))
    clock.measurement().tell()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
