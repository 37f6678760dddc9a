"""One device of a simulated fleet, its records and its batch order, as each trainer wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.trainers import NumpyTrainer, TorchTrainer, TrainingSettings
from server_kit.simulation.training import Cnn, DeviceData, LocalTask, LogisticRegression, Mlp
from server_kit.simulation.training.streams import Draw

Named = dict[str, NDArray[np.float32]]
Spec = LogisticRegression | Mlp | Cnn

SEED, ROUND = 5, 3
SIZES = (13, 9, 4, 1, 0)  # a short last batch in the end, one batch, one record, none
SPECS: dict[str, Spec] = {
    "logistic": LogisticRegression(features=98, classes=4),
    "mlp": Mlp(features=98, hidden=(8,), classes=4),
    "deep mlp": Mlp(features=98, hidden=(7, 6), classes=4),
    "cnn": Cnn(image=(2, 14, 14), channels=(3, 4), kernel=3, hidden=(6,), classes=4),
}

OBJECTIVES: dict[str, dict[str, Any]] = {
    "plain": {},
    "three epochs": {"epochs": 3},
    "seven steps": {"steps": 7},
    "no step": {"steps": 0},
    "one batch": {"batch_size": 50, "epochs": 2},
    "single records": {"batch_size": 1},
    "proximal": {"proximal": 0.7, "epochs": 2},
    "momentum": {"momentum": 0.9, "epochs": 2},
    "proximal momentum": {"momentum": 0.5, "proximal": 0.3, "epochs": 2},
    "masked": {"mask": True, "momentum": 0.5, "proximal": 0.3, "epochs": 2},
    "halves": {"halves": True, "epochs": 3, "momentum": 0.5, "proximal": 0.2},
    "masked halves": {"halves": True, "mask": True, "epochs": 3, "momentum": 0.5},
    "halves, some steps": {"halves": True, "steps": 6},
}


class SimulatorsWords:
    """The shuffles that the simulator draws for one device."""

    def __init__(self, device: str) -> None:
        self._draw, self._drawn = Draw(SEED, device, ROUND), 0

    def words(self, count: int) -> NDArray[np.uint64]:
        self._drawn += count
        return self._draw.words("batches", self._drawn)[-count:]


def fleet(spec: Spec) -> DeviceData:
    """Devices "d0", "d1", … of these sizes; half of their inputs are zero, as in images."""
    numbers = np.random.default_rng(11)
    x = torch.from_numpy(numbers.normal(size=(sum(SIZES), *spec.input_shape)).astype(np.float32)).clamp_min_(0)
    y = torch.from_numpy(numbers.integers(0, 4, size=sum(SIZES)))
    ends = np.cumsum(SIZES).tolist()
    return DeviceData(
        x, y, {f"d{i}": range(end - size, end) for i, (end, size) in enumerate(zip(ends, SIZES, strict=True))}
    )


def named(spec: Spec, flat: Tensor) -> Named:
    return {name: tensor.numpy() for name, tensor in spec.layout.unpack(flat).items()}


def flat(spec: Spec, tensors: Any) -> Tensor:
    return spec.layout.pack({name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()})


def objective(spec: Spec, name: str) -> tuple[LocalTask, TrainingSettings]:
    """The same settings for the simulator and for a device."""
    settings: dict[str, Any] = {"batch_size": 4, **OBJECTIVES[name]}
    mask = torch.arange(spec.layout.size) % 3 > 0 if settings.pop("mask", False) else None
    parts = None if mask is None else {name: view.numpy() for name, view in spec.layout.views(mask).items()}
    return LocalTask(0.1, mask=mask, **settings), TrainingSettings(0.1, mask=parts, **settings)


def records(data: DeviceData, device: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rows = data.rows(device, np.arange(data.count(device)))
    return data.x[rows].numpy(), data.y[rows].numpy()


def numpy_trainer(spec: Spec, data: DeviceData, device: str) -> NumpyTrainer:
    return NumpyTrainer(*records(data, device), order=SimulatorsWords(device))


def torch_trainer(spec: Spec, data: DeviceData, device: str) -> TorchTrainer:
    inputs, labels = records(data, device)
    shaped = inputs.reshape(len(inputs), *spec.input_shape)
    return TorchTrainer(spec.module(), nn.CrossEntropyLoss(), (shaped, labels), order=SimulatorsWords(device))
