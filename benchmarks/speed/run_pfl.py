# mypy: disable-error-code="import-not-found, misc"
"""pfl-research, in an environment of its own: `torchrun -m benchmarks.speed.run_pfl DATA MODEL ROUNDS EPOCHS`.

Written from its public interface: a simulated backend, federated averaging, one process for each core.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.speed import workload


class Net(torch.nn.Module):
    """The common model with the two methods that pfl asks for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = workload.build_model(name)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.train()
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, object]:
        return {}


class Timing(TrainingProcessCallback):
    """Tells the clock when a round has ended."""

    def __init__(self, clock: workload.Clock, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self._clock, self._inputs, self._labels = clock, inputs, labels

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self._clock.round_ended(lambda: workload.loss_of(model.pytorch_model.layers, self._inputs, self._labels))
        return False, Metrics()


def main(folder: Path, name: str, rounds: int, epochs: int) -> None:
    clock = workload.Clock("pfl")
    torch.set_num_threads(1)
    np.random.seed(1)  # noqa: NPY002 - pfl draws its users from the global generator
    inputs, labels = workload.read_data(folder)

    def user_data(user: int) -> Dataset:
        own = slice(user * workload.SAMPLES, (user + 1) * workload.SAMPLES)
        return Dataset(raw_data=[inputs[own], labels[own]])

    data = FederatedDataset(user_data, get_user_sampler("random", list(range(workload.DEVICES))))
    net = Net(name)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=workload.PER_ROUND,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=epochs, local_learning_rate=workload.LEARNING_RATE, local_batch_size=workload.BATCH
        ),
        callbacks=[Timing(clock, inputs, labels)],
    )
    if int(os.environ.get("RANK", "0")) == 0:
        clock.measurement().tell()
    if torch.distributed.is_initialized():
        # A process that ends while another still talks to it is aborted, and the measurement with it.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
