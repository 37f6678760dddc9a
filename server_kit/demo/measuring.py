"""How good models are for devices. The demo made the data, so it can measure what no server could see.

Nothing of this goes through the federation, and nothing is spent on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.trainers import NumpyTrainer
from privacy.randomness import NoiseSource
from privacy.tensor_shapes import in_order

if TYPE_CHECKING:
    from server_kit.demo.data import DeviceRecords
    from server_kit.demo.terms import Terms

Weights = Mapping[str, NDArray[np.floating[Any]]]
Accuracies = NDArray[np.float64]
"""Of one model, one for each device, on images that no device has trained on."""


class Examiner:
    """Tests models on the devices' test images."""

    def __init__(self, devices: Sequence[DeviceRecords]) -> None:
        self._testers = [NumpyTrainer(device.test.images, device.test.labels) for device in devices]

    def accuracies(self, weights: Weights) -> Accuracies:
        return np.array([tester.evaluate(weights).correct_share for tester in self._testers])


class OneModel:
    """A single model for all devices, to compare with: FedAvg over the same records from the same start.

    Devices train it by the same mechanism, for as many rounds and the same ε; only the wire is left out.
    """

    def __init__(self, devices: Sequence[DeviceRecords], start: Weights, terms: Terms, examiner: Examiner) -> None:
        self._trainers = [NumpyTrainer(device.train.images, device.train.labels) for device in devices]
        shapes = in_order({name: np.shape(tensor) for name, tensor in start.items()})
        self._mechanism = terms.mechanism_of_one_model(shapes)
        self._noise = NoiseSource()
        self._examiner = examiner
        self._weights = dict(start)
        self.rounds = [examiner.accuracies(start)]
        """From before the first round on."""

    def train_a_round(self) -> None:
        updates = [self._update(trainer) for trainer in self._trainers]
        self._weights = {
            name: weight + np.mean([update[name] for update in updates], axis=0)
            for name, weight in self._weights.items()
        }
        self.rounds.append(self._examiner.accuracies(self._weights))

    def _update(self, trainer: NumpyTrainer) -> Weights:
        answer = self._mechanism.answer(trainer.training_data(self._weights), self._noise)
        return self._mechanism.decode(answer.payload)
