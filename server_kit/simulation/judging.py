"""How good a federation is: every device is tested with the model it would use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.cohort_tree import ROOT
from server_kit.simulation.chance import generator
from server_kit.simulation.fairness import accuracy_spread
from server_kit.simulation.metrics import Progress, agreement
from server_kit.simulation.records import CohortPoint, Point

if TYPE_CHECKING:
    from server_kit.federation import Federation
    from server_kit.interfaces import CohortId, DeviceId
    from server_kit.simulation.fleet import SimulatedFleet
    from server_kit.simulation.population import Population
    from server_kit.simulation.ragged import FloatArray
    from server_kit.simulation.training import Trainer
    from server_kit.simulation.virtual_time import RunSettings
    from server_kit.strategy import Strategy

_MOST_COORDINATES = 1 << 26  # of models that devices have trained for their own use: a quarter of a GiB


@dataclass(frozen=True)
class Judge:
    """Tests the same devices each time."""

    population: Population
    trainer: Trainer
    strategy: Strategy
    settings: RunSettings
    devices: tuple[DeviceId, ...]
    seed: int

    @classmethod
    def of(
        cls, population: Population, trainer: Trainer, strategy: Strategy, settings: RunSettings, seed: int
    ) -> Judge:
        return cls(population, trainer, strategy, settings, sampled(population, settings, seed), seed)

    def point(self, federation: Federation, fleet: SimulatedFleet, now_seconds: float) -> Point:
        """The run as it stands."""
        joined = self._joined(self.devices, fleet.round)
        homes = self._homes(federation, fleet, joined)
        accuracies = self._accuracies(federation, joined, homes, fleet.round)
        spread = accuracy_spread(accuracies)
        tally = fleet.tally
        progress = Progress(fleet.round, now_seconds, spread.mean, tally.bytes_down, tally.bytes_up, tally.steps)
        return Point(
            progress,
            spread,
            self._cohorts(federation, homes, accuracies),
            self._agreement(federation, joined, homes, fleet.round),
            fleet.epsilon(),
            self._backdoor(federation, joined, homes, fleet.round),
        )

    def everyone(
        self, federation: Federation, fleet: SimulatedFleet
    ) -> tuple[tuple[float, ...], Mapping[DeviceId, CohortId]]:
        """At the end: the accuracy of each tested device, and where it belongs."""
        joined = self._joined(self.devices, fleet.round)
        homes = self._homes(federation, fleet, joined)
        accuracies = self._accuracies(federation, joined, homes, fleet.round)
        return tuple(accuracies.tolist()), dict(zip(joined, homes, strict=True))

    def _joined(self, devices: Sequence[DeviceId], round_number: int) -> list[DeviceId]:
        joins = self.population.joins_at_round
        return [device for device in devices if joins[self.population.index(device)] <= round_number]

    @staticmethod
    def _homes(federation: Federation, fleet: SimulatedFleet, devices: Sequence[DeviceId]) -> list[CohortId]:
        """Where devices belong. Whoever only uses a model tells nobody which, so nothing is spent on it."""
        with fleet.in_private():
            return federation.homes(devices)

    def _accuracies(
        self, federation: Federation, devices: Sequence[DeviceId], homes: Sequence[CohortId], round_number: int
    ) -> FloatArray:
        if not devices:
            return np.empty(0)
        leaves = sorted(set(homes))
        models = torch.stack([federation.model(leaf) for leaf in leaves])
        places = [leaves.index(home) for home in homes]
        if self.strategy.fine_tune_epochs:
            return self._fine_tuned(models, devices, places, round_number)
        data = self.population.device_data("test", round_number)
        return self.trainer.evaluate(models, data, devices, model_of=places).accuracies.double().numpy()

    def _backdoor(
        self, federation: Federation, devices: Sequence[DeviceId], homes: Sequence[CohortId], round_number: int
    ) -> float | None:
        """How often a trigger does what it should, over all records that can show it."""
        data = self.population.backdoor_data(round_number)
        if data is None or not devices:
            return None
        leaves = sorted(set(homes))
        models = torch.stack([federation.model(leaf) for leaf in leaves])
        return self.trainer.evaluate(models, data, devices, model_of=[leaves.index(home) for home in homes]).accuracy

    def _fine_tuned(
        self, models: torch.Tensor, devices: Sequence[DeviceId], places: Sequence[int], round_number: int
    ) -> FloatArray:
        """FTFA: a device trains on its own data before it uses a model."""
        task = replace(self.settings.task, epochs=self.strategy.fine_tune_epochs, steps=None)
        train, test = (self.population.device_data(part, round_number) for part in ("train", "test"))
        accuracies = np.empty(len(devices))
        together = max(1, _MOST_COORDINATES // models.shape[1])
        for first in range(0, len(devices), together):
            own = slice(first, first + together)
            tuned = self.trainer.train(
                models, train, devices[own], task, seed=self.seed, round_number=-1 - round_number, start_of=places[own]
            ).updates.add_(models[places[own]])
            tested = self.trainer.evaluate(tuned, test, devices[own], model_of=range(len(tuned)))
            accuracies[own] = tested.accuracies.double().numpy()
        return accuracies

    def _cohorts(
        self, federation: Federation, homes: Sequence[CohortId], accuracies: FloatArray
    ) -> dict[CohortId, CohortPoint]:
        found = np.array(homes)
        points = {}
        for leaf in federation.leaves:
            own = accuracies[found == leaf]
            tested = own[~np.isnan(own)]
            mean = float(tested.mean()) if len(tested) else float("nan")
            points[leaf] = CohortPoint(len(own), mean, federation.state.cohorts[leaf].version)
        return points

    def _agreement(
        self, federation: Federation, devices: Sequence[DeviceId], homes: Sequence[CohortId], round_number: int
    ) -> float | None:
        """Of cohorts with the truth; where there is one cohort and clusters in it, of those."""
        groups = self.population.true_groups(round_number)
        if groups is None or not devices:
            return None
        truth = groups[[self.population.index(device) for device in devices]]
        clusters = federation.memory.get("clusters", {})
        if list(federation.leaves) == [ROOT] and clusters:
            found = np.array([clusters.get(device, -1) for device in devices])
        else:
            found = np.unique(np.array(homes), return_inverse=True)[1]
        return agreement(found - found.min(), truth)


def sampled(population: Population, settings: RunSettings, seed: int) -> tuple[DeviceId, ...]:
    """All devices, or as many as are tested, drawn once."""
    devices, most = population.devices, settings.evaluated_devices
    if len(devices) <= most:
        return devices
    places = np.sort(generator(seed, "evaluated").choice(len(devices), most, replace=False))
    return tuple(devices[place] for place in places)
